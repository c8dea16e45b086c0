"""Pure ASGI middleware: what holds for every request, whatever its route."""
