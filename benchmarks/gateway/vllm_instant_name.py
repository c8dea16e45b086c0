"""How vLLM finds its executor without a model; apart from it, because it imports vLLM."""

EXECUTOR = "benchmarks.gateway.vllm_instant.InstantExecutor"
TOKENS_VARIABLE = "MUSTER_INSTANT_TOKENS"
