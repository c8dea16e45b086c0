"""The gateway process: hands gateway/ its channels, sockets and errors."""
