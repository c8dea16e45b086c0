"""The protocol between the smg router and its vLLM workers, `vllm.grpc.engine.VllmEngine`, served over all ranks."""
