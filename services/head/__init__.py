"""The control plane: who is in the deployment, and how busy is each rank."""
