"""Every flag of `muster serve`, `head`, `engine` and `gateway`, written once.

Names and meanings are those of vLLM where the meaning is the same.
"""

from __future__ import annotations

from pathlib import Path

from services.cli import flag_values as values
from services.cli.flag import Flag

MODEL = "Model"
PARALLEL = "Data parallelism"
SERVER = "Server"
MEMORY = "Scheduling and memory"
OPERATION = "Starting, stopping, failing"
LOGGING = "Logging"
CONNECTION = "Connection"
SECURITY = "Security of the gRPC ports"

DEFAULT_RPC_PORT = 29550

SERVED_MODEL_NAME = Flag(
    "--served-model-name", MODEL, "Names that clients may ask for, the preferred first.", values.text,
    (), metavar="NAME", several=True, shown_default="the name of the checkpoint",
)  # fmt: skip
DTYPE = Flag(
    "--dtype", MODEL, "Number format of the computation: auto, float32, bfloat16 or float16.",
    values.one_of("auto", "float32", "bfloat16", "float16"), "auto",
)  # fmt: skip
DEVICE = Flag(
    "--device", MODEL, "Where the engines compute: cpu, cuda, or auto: a GPU per rank where torch can use one.",
    values.one_of("auto", "cpu", "cuda"), "auto",
)  # fmt: skip
ATTENTION_BACKEND = Flag(
    "--attention-backend", MODEL, "Attention on a GPU: flash, torch, or auto: flash where it can be had.",
    values.one_of("auto", "flash", "torch"), "auto",
)  # fmt: skip
ENFORCE_EAGER = Flag("--enforce-eager", MODEL, "Launch every kernel one by one, without CUDA graphs.", None, False)
MAX_CUDAGRAPH_CAPTURE_SIZE = Flag(
    "--max-cudagraph-capture-size", MODEL, "Largest decode batch that is captured as a CUDA graph at start.",
    values.whole_number(1), 256, metavar="N", unit="sequences",
)  # fmt: skip
KERNELS = Flag(
    "--kernels", MODEL, "What computes on a CPU: native, torch, or auto: native with --dtype auto where it can be had.",
    values.one_of("auto", "native", "torch"), "auto",
)  # fmt: skip
QUANTIZATION = Flag(
    "--quantization", MODEL, "Quantise an unquantised checkpoint while it is loaded, for CPUs: none, int8 or int4.",
    values.one_of("none", "int8", "int4"), "none", short="-q", metavar="KIND",
)  # fmt: skip
LOAD_FORMAT = Flag(
    "--load-format", MODEL, "auto reads the checkpoint; dummy makes random weights from --seed, for tests.",
    values.one_of("auto", "dummy"), "auto", metavar="FORMAT",
)  # fmt: skip
SEED = Flag("--seed", MODEL, "Seed of the weights that --load-format dummy makes; requests bring their own.",
            values.whole_number(0, 2**63 - 1), 0)  # fmt: skip
MAX_MODEL_LEN = Flag(
    "--max-model-len", MODEL, "Longest prompt plus answer.", values.whole_number(1), unit="tokens",
    metavar="TOKENS", shown_default="the checkpoint's",
)  # fmt: skip
MODEL_CACHE = Flag(
    "--model-cache", MODEL, "Where the default model and compiled kernels are kept.",
    values.path, Path("~/.cache/muster").expanduser(),
    metavar="DIRECTORY", shown_default="~/.cache/muster", short_variable="MUSTER_CACHE",
)  # fmt: skip

DATA_PARALLEL_SIZE = Flag("--data-parallel-size", PARALLEL, "Number of ranks over all nodes.",
                          values.whole_number(1, 4096), 1, short="-dp", metavar="N")  # fmt: skip
MAX_DATA_PARALLEL_SIZE = Flag(
    "--max-data-parallel-size", PARALLEL, "Number of ranks up to which `muster scale`, or engines that join, may add "
    "some at run time.", values.whole_number(1, 4096), metavar="N", shown_default="--data-parallel-size",
)  # fmt: skip
DATA_PARALLEL_SIZE_LOCAL = Flag(
    "--data-parallel-size-local", PARALLEL, "Ranks on this node; 0 on a head that only serves the API.",
    values.whole_number(0, 4096), short="-dpl", metavar="N", unit="ranks", shown_default="all of them",
)  # fmt: skip
DATA_PARALLEL_START_RANK = Flag(
    "--data-parallel-start-rank", PARALLEL, "First rank of a --headless or --data-parallel-hybrid-lb node.",
    values.whole_number(0), short="-dpr", metavar="RANK", shown_default="the head gives out free ranks",
)  # fmt: skip
DATA_PARALLEL_RANK = Flag(
    "--data-parallel-rank", PARALLEL, "The one rank that this node runs and its gateways serve.",
    values.whole_number(0), short="-dpn", metavar="RANK",
)  # fmt: skip
DATA_PARALLEL_HYBRID_LB = Flag(
    "--data-parallel-hybrid-lb", PARALLEL, "Each node's gateways serve that node's ranks; balance nodes outside.",
    None, False, short="-dph",
)  # fmt: skip
DATA_PARALLEL_EXTERNAL_LB = Flag(
    "--data-parallel-external-lb", PARALLEL, "One rank per node, served by its own gateway; balance ranks outside.",
    None, False, short="-dpe",
)  # fmt: skip
DATA_PARALLEL_ADDRESS = Flag(
    "--data-parallel-address", PARALLEL, "Address of the head, as other nodes reach it.", values.text, short="-dpa",
    metavar="ADDRESS", shown_default="127.0.0.1",
)  # fmt: skip
DATA_PARALLEL_BIND_ADDRESS = Flag(
    "--data-parallel-bind-address", PARALLEL,
    "Address the head listens on, when that is not the one others reach it by.", values.text, metavar="ADDRESS",
    shown_default="--data-parallel-address",
)  # fmt: skip
DATA_PARALLEL_RPC_PORT = Flag(
    "--data-parallel-rpc-port", PARALLEL, "Port of the head; 0 takes a free one and says which.", values.port,
    DEFAULT_RPC_PORT, short="-dpp",
)  # fmt: skip
ENABLE_EXPERT_PARALLEL = Flag(
    "--enable-expert-parallel", PARALLEL,
    "Spread the experts of a mixture-of-experts model over all ranks, which then step together.", None, False,
    short="-ep",
)  # fmt: skip
SHRINK_EXPERT_GROUP_AFTER = Flag(
    "--shrink-expert-group-after", PARALLEL, "Absence of a rank after which the others spread its experts over "
    "themselves and serve on without it until it is back; each needs the memory for them. 0 is at once.",
    values.seconds, metavar="SECONDS", shown_default="never: they wait for it",
)  # fmt: skip
HEADLESS = Flag("--headless", PARALLEL, "Run engines only; the head is on another node.", None, False)
DEPLOYMENT_ID = Flag("--deployment-id", PARALLEL, "Name that keeps engines of other deployments out.", values.text,
                     "default", metavar="NAME")  # fmt: skip
ENGINE_HOST = Flag(
    "--engine-host", PARALLEL, "Address this node's engines listen on, for gateways of other nodes.", values.text,
    metavar="ADDRESS", shown_default="the head's on its node, elsewhere the one the head is reached by",
)  # fmt: skip
ENGINE_ADVERTISE_HOST = Flag(
    "--engine-advertise-host", PARALLEL, "Address gateways reach these engines by.", values.text, metavar="ADDRESS",
    shown_default="--engine-host, or --data-parallel-address on the head's node",
)  # fmt: skip
API_SERVER_COUNT = Flag("--api-server-count", PARALLEL, "Number of gateways; they share the ports.",
                        values.whole_number(0, 256), short="-asc", metavar="N", shown_default="1")  # fmt: skip

HOST = Flag("--host", SERVER, "Address to listen on; 0.0.0.0 or :: for all.", values.text, "127.0.0.1",
            metavar="ADDRESS")  # fmt: skip
PORT = Flag("--port", SERVER, "HTTP port; 0 takes a free one and says which.", values.port, 8000)
GRPC_PORT = Flag("--grpc-port", SERVER, "gRPC port of the gateways; 0 takes a free one.", values.port, 8001)
API_KEY = Flag(
    "--api-key", SERVER, "Keys that clients must send, as a bearer token or x-api-key.", values.text, (),
    metavar="KEY", several=True, secret=True, shown_default="everybody may",
)  # fmt: skip
REQUEST_TIMEOUT = Flag(
    "--request-timeout", SERVER, "Longest time one request may take.", values.positive_seconds, metavar="SECONDS",
    shown_default="no limit",
)  # fmt: skip

OPEN_METRICS = Flag("--open-metrics", SERVER, "Let everybody read /metrics although --api-key is given.", None, False)
ANY_MODEL_NAME = Flag("--any-model-name", SERVER, "Answer requests for any model name, for clients with a fixed one.",
                      None, False)  # fmt: skip
ALLOWED_ORIGINS = Flag("--allowed-origins", SERVER, "Web pages that may call from a browser; * is any.", values.text,
                       (), metavar="ORIGIN", several=True)  # fmt: skip
PAGE = Flag("--page", SERVER, "A page at / to chat with the model and watch the deployment.", None, True,
            negatable=True)  # fmt: skip
ROOT_PATH = Flag("--root-path", SERVER, "Path that a proxy puts in front.", values.text, "", metavar="PATH")
MAX_BODY_SIZE = Flag("--max-body-size", SERVER, "Largest request body; a larger one gets 413.", values.num_bytes,
                     32 << 20, metavar="SIZE", shown_default="32MiB")  # fmt: skip
PING_INTERVAL = Flag("--ping-interval", SERVER, "Silence after which a stream gets a comment; 0 never.", values.seconds,
                     15.0, metavar="SECONDS", unit="seconds")  # fmt: skip
SMG = Flag("--smg", SERVER, "Serve the smg router too, on --grpc-port: it sees one vLLM worker with all ranks.", None,
           False)  # fmt: skip
RESPONSE_STORE_SIZE = Flag(
    "--response-store-size", SERVER, "Memory of a gateway for finished /v1/responses, to continue them; 0 keeps none.",
    values.num_bytes_or_none, 64 << 20, metavar="SIZE", shown_default="64MiB",
)  # fmt: skip
RESPONSE_TTL = Flag("--response-ttl", SERVER, "Time after which a finished response is forgotten.",
                    values.positive_seconds, 86_400.0, metavar="SECONDS", shown_default="24h")  # fmt: skip

API_KEY_FILE = Flag("--api-key-file", SERVER, "File with keys that clients must send, one a line.", values.path,
                    metavar="FILE", shown_default="--api-key alone counts")  # fmt: skip
QUEUE_TIMEOUT = Flag(
    "--queue-timeout", SERVER, "Longest wait for the first token of an answer; then 429 with Retry-After.",
    values.positive_seconds, metavar="SECONDS", shown_default="--request-timeout",
)  # fmt: skip
UDS = Flag("--uds", SERVER, "Unix socket for HTTP, instead of --host and --port; gRPC stays on its port.", values.path,
           metavar="PATH")  # fmt: skip
SSL_CERTFILE = Flag("--ssl-certfile", SERVER, "PEM file with the certificate, and its chain, for HTTPS.", values.path,
                    metavar="FILE", shown_default="HTTP without TLS")  # fmt: skip
SSL_KEYFILE = Flag("--ssl-keyfile", SERVER, "PEM file with the certificate's private key.", values.path, metavar="FILE",
                   shown_default="in --ssl-certfile")  # fmt: skip
ALLOWED_METHODS = Flag("--allowed-methods", SERVER, "Methods that pages of --allowed-origins may use.", values.text,
                       (), metavar="METHOD", several=True, shown_default="all that are served")  # fmt: skip
ALLOWED_HEADERS = Flag("--allowed-headers", SERVER, "Headers that they may send.", values.text, (), metavar="HEADER",
                       several=True, shown_default="any")  # fmt: skip
ALLOW_CREDENTIALS = Flag("--allow-credentials", SERVER, "Let them send cookies and the like.", None, False)
REASONING_PARSER = Flag(
    "--reasoning-parser", SERVER,
    "How the model writes thoughts: auto (by its template), none, qwen3, deepseek_r1 or mistral.",
    values.one_of("auto", "none", "qwen3", "deepseek_r1", "mistral"), "auto", metavar="NAME",
)  # fmt: skip
TOOL_CALL_PARSER = Flag(
    "--tool-call-parser", SERVER,
    "How it writes tool calls: auto (by its template), none, hermes, llama3_json, mistral or json.",
    values.one_of("auto", "none", "hermes", "llama3_json", "mistral", "json"), "auto", metavar="NAME",
)  # fmt: skip
OTLP_TRACES_ENDPOINT = Flag(
    "--otlp-traces-endpoint", LOGGING, "OpenTelemetry collector (OTLP over gRPC) that gets a span per request.",
    values.text, metavar="URL", shown_default="no tracing",
)  # fmt: skip
FRONT = (
    API_KEY_FILE, QUEUE_TIMEOUT, UDS, SSL_CERTFILE, SSL_KEYFILE, ALLOWED_METHODS, ALLOWED_HEADERS, ALLOW_CREDENTIALS,
    REASONING_PARSER, TOOL_CALL_PARSER, OTLP_TRACES_ENDPOINT,
)  # fmt: skip

MAX_NUM_SEQS = Flag("--max-num-seqs", MEMORY, "Most sequences in one step of a rank.", values.whole_number(1), 64,
                    metavar="N", unit="sequences")  # fmt: skip
MAX_NUM_BATCHED_TOKENS = Flag("--max-num-batched-tokens", MEMORY, "Most tokens in one step of a rank.",
                              values.whole_number(1), 512, metavar="N", unit="tokens")  # fmt: skip
BLOCK_SIZE = Flag("--block-size", MEMORY, "Size of one block of the KV cache.", values.whole_number(1, 1024), 16,
                  metavar="TOKENS", unit="tokens")  # fmt: skip
NUM_BLOCKS = Flag("--num-blocks", MEMORY, "Blocks in the KV cache of a rank.", values.whole_number(2), metavar="N",
                  shown_default="what fits into --kv-cache-memory")  # fmt: skip
KV_CACHE_MEMORY = Flag("--kv-cache-memory", MEMORY, "Memory for the KV cache of a rank.", values.num_bytes,
                       metavar="SIZE", shown_default="a share of what is free")  # fmt: skip
GPU_MEMORY_UTILIZATION = Flag(
    "--gpu-memory-utilization", MEMORY, "Share of a GPU's memory that a rank may use, weights included; what the "
    "largest step leaves of it is the KV cache.", values.share, 0.9, metavar="SHARE",
)  # fmt: skip
ENABLE_PREFIX_CACHING = Flag("--enable-prefix-caching", MEMORY, "Reuse KV blocks of equal prompt beginnings.", None,
                             True, negatable=True)  # fmt: skip
MAX_NUM_QUEUED_REQS = Flag("--max-num-queued-reqs", MEMORY, "Most requests waiting on a rank; more get 429.",
                           values.whole_number(1), 1024, metavar="N", unit="requests")  # fmt: skip
NUM_THREADS = Flag(
    "--num-threads", MEMORY, "Compute threads of a rank.", values.whole_number(1, 1024), metavar="N",
    shown_default="(cores - 1) / local ranks, at least 1",
)  # fmt: skip
NUM_SPARE_THREADS = Flag(
    "--num-spare-threads", MEMORY,
    "Native compute threads of a rank beside --num-threads, resting while others need their cores.",
    values.whole_number(0, 1024), metavar="N",
    shown_default="what is left of cores / local ranks; none where --num-threads is given",
)  # fmt: skip

SHUTDOWN_TIMEOUT = Flag("--shutdown-timeout", OPERATION, "Time for running answers to finish after SIGTERM or Ctrl-C.",
                        values.seconds, 30.0, metavar="SECONDS", unit="seconds")  # fmt: skip
READY_TIMEOUT = Flag("--ready-timeout", OPERATION, "Time until all ranks must be ready.", values.positive_seconds,
                     600.0, metavar="SECONDS", unit="seconds")  # fmt: skip
HEARTBEAT_INTERVAL = Flag("--heartbeat-interval", OPERATION, "How often engines renew their lease.",
                          values.positive_seconds, 2.0, metavar="SECONDS", unit="seconds")  # fmt: skip
HEARTBEAT_TIMEOUT = Flag(
    "--heartbeat-timeout", OPERATION,
    "Silence after which a rank counts as lost; heads and gateways hang after it too, but not before 10 s.",
    values.positive_seconds, 10.0, metavar="SECONDS", unit="seconds",
)  # fmt: skip
HEAD_TIMEOUT = Flag(
    "--head-timeout", OPERATION, "Time without a head after which engines end instead of serving on; 0 is never.",
    values.seconds, metavar="SECONDS", shown_default="5m on a --headless node, never elsewhere",
)  # fmt: skip
MAX_EARLY_DEATHS = Flag(
    "--max-early-deaths", OPERATION,
    "Deaths in a row, each before 10 s of serving, after which a process is not started again; 0 never gives up.",
    values.whole_number(0), 5, metavar="N", unit="deaths",
)  # fmt: skip
ON_GIVEN_UP = Flag(
    "--on-given-up", OPERATION, "When an engine or gateway is given up: serve on with the others, or stop the node.",
    values.one_of("serve", "stop"), "serve", metavar="ACTION",
)  # fmt: skip
MAX_RANK_LOSSES = Flag(
    "--max-rank-losses", OPERATION,
    "Ranks that may be lost under a request before it is failed as the cause; 1 continues none on another rank.",
    values.whole_number(1), 2, metavar="N", unit="ranks",
)  # fmt: skip
RUNTIME_DIR = Flag(
    "--runtime-dir", OPERATION, "Where a private directory for sockets is made.", values.path, metavar="DIRECTORY",
    shown_default="$XDG_RUNTIME_DIR, else the temporary directory",
)  # fmt: skip

LOG_LEVEL = Flag("--log-level", LOGGING, "debug, info, warning or error.",
                 values.one_of("debug", "info", "warning", "error"), "info", metavar="LEVEL")  # fmt: skip
LOG_FORMAT = Flag("--log-format", LOGGING, "text for people, json for collectors.", values.one_of("text", "json"),
                  "text", metavar="FORMAT")  # fmt: skip

TLS_CERT = Flag("--tls-cert", SECURITY, "PEM file with this node's certificate; TCP ports then speak TLS.", values.path,
                metavar="FILE", shown_default="no TLS")  # fmt: skip
TLS_KEY = Flag("--tls-key", SECURITY, "PEM file with the certificate's private key.", values.path, metavar="FILE",
               shown_default="no TLS")  # fmt: skip
TLS_CA = Flag(
    "--tls-ca", SECURITY, "PEM file with the authorities that certificates of others are checked against.",
    values.path, metavar="FILE", shown_default="the system's, and callers need no certificate",
)  # fmt: skip
TLS_CLIENT_AUTH = Flag(
    "--tls-client-auth", SECURITY, "With --tls-ca, take callers only with a certificate (mutual TLS).", None, True,
    negatable=True,
)  # fmt: skip
TLS_SERVER_NAME = Flag(
    "--tls-server-name", SECURITY, "Name in the certificates of others, when not the address they are dialled by.",
    values.text, metavar="NAME", shown_default="the address",
)  # fmt: skip
CLUSTER_TOKEN_FILE = Flag(
    "--cluster-token-file", SECURITY,
    "File with tokens, one a line, with roles in front unless it is a member's; the first is shown to others.",
    values.path, metavar="FILE", shown_default="everybody may",
)  # fmt: skip
GRPC_REFLECTION = Flag("--grpc-reflection", SECURITY, "Let callers list and describe the services.", None, True,
                       negatable=True)  # fmt: skip
DIALLING = (TLS_CERT, TLS_KEY, TLS_CA, TLS_SERVER_NAME, CLUSTER_TOKEN_FILE)
DOORS = (TLS_CERT, TLS_KEY, TLS_CA, TLS_CLIENT_AUTH, TLS_SERVER_NAME, CLUSTER_TOKEN_FILE, GRPC_REFLECTION)

# Flags of one process, which the launcher sets; useful on their own in containers.
HEAD_TARGET = Flag("--head-target", CONNECTION, "gRPC target of the head.", values.text,
                   f"127.0.0.1:{DEFAULT_RPC_PORT}", metavar="TARGET")  # fmt: skip
UNIX_PATH = Flag("--unix-path", CONNECTION, "Unix socket to listen on too.", values.path, metavar="PATH")
HEALTH_PORT = Flag(
    "--health-port", CONNECTION, "Port that answers health checks only, without TLS, for probes that cannot speak it.",
    values.port, metavar="PORT", shown_default="health checks share --port",
)  # fmt: skip
BIND_HOST = Flag("--host", CONNECTION, "Address to listen on.", values.text, "127.0.0.1", metavar="ADDRESS")
HEAD_PORT = Flag("--port", CONNECTION, "Port to listen on; 0 takes a free one.", values.port, DEFAULT_RPC_PORT)
ENGINE_PORT = Flag("--port", CONNECTION, "Port to listen on; 0 takes a free one and registers it.", values.port, 0)
ADVERTISE_HOST = Flag("--advertise-host", CONNECTION, "Address gateways reach this engine by.", values.text,
                      metavar="ADDRESS", shown_default="--host")  # fmt: skip
RANK = Flag("--rank", PARALLEL, "Global rank to take.", values.whole_number(0), metavar="RANK",
            shown_default="any free one")  # fmt: skip
EXPECTED_SIZE = Flag("--data-parallel-size", PARALLEL, "Number of ranks the head must have.", values.whole_number(1),
                     short="-dp", metavar="N", shown_default="whatever the head has")  # fmt: skip
ENGINE_DEPLOYMENT_ID = Flag("--deployment-id", PARALLEL, "Deployment to join.", values.text, "", metavar="NAME",
                            shown_default="whatever the head runs")  # fmt: skip
LOCAL = Flag("--local", PARALLEL, "This engine was started by the head's launcher.", None, False)
WANTED_SIZE = Flag("--wanted-size", PARALLEL, "Number of ranks that `muster scale` asked an earlier head for; the "
                   "launcher says it.", values.whole_number(1, 4096), metavar="N",
                   shown_default="--data-parallel-size")  # fmt: skip
LOCAL_RANKS = Flag("--local-ranks", PARALLEL, "Ranks kept for the head's own launcher.", values.ranks,
                   metavar="FIRST-LAST")  # fmt: skip
CONFIGURATION = Flag("--configuration", PARALLEL, "Settings every rank must have.", values.setting, (),
                     metavar="KEY=VALUE", several=True)  # fmt: skip
ADVICE = Flag("--advice", PARALLEL, "Settings every rank should have; a difference is a warning.", values.setting, (),
              metavar="KEY=VALUE", several=True)  # fmt: skip
TARGETS_FILE = Flag("--targets-file", CONNECTION, "File that gets the targets listened on, one a line.", values.path,
                    metavar="PATH")  # fmt: skip
HTTP_FD = Flag("--http-fd", CONNECTION, "Listening sockets inherited from the launcher, instead of --host and --port.",
               values.whole_number(3), (), metavar="FD", several=True)  # fmt: skip
REUSE_PORT = Flag("--reuse-port", CONNECTION, "Share --grpc-port with the launcher's other gateways.", None, False)
DRAIN_DELAY = Flag(
    "--drain-delay", OPERATION, "Time after SIGTERM in which new requests are still taken, while readiness is "
    "false and balancers take note.", values.seconds, 0.0, metavar="SECONDS", unit="seconds",
)  # fmt: skip
WAIT_UNTIL_READY = Flag("--wait-until-ready", CONNECTION, "Take no connections before a rank serves.", None, False)
GATEWAY_NAME = Flag("--name", CONNECTION, "Name of this gateway in the roster.", values.text, metavar="NAME",
                    shown_default="host name and process id")  # fmt: skip
METRICS_DIR = Flag(
    "--metrics-dir", CONNECTION, "Shared by gateways of one port: each then shows the metrics of all of them.",
    values.path, metavar="DIRECTORY", shown_default="each counts for itself",
)  # fmt: skip
GATEWAY_RANKS = Flag("--ranks", PARALLEL, "Global ranks this gateway sends requests to, as in 0,2,4-7.",
                     values.rank_list, metavar="RANKS", shown_default="all of them")  # fmt: skip

SERVE = (
    SERVED_MODEL_NAME, DTYPE, DEVICE, KERNELS, QUANTIZATION, LOAD_FORMAT, SEED, MAX_MODEL_LEN, MODEL_CACHE,
    ATTENTION_BACKEND, ENFORCE_EAGER, MAX_CUDAGRAPH_CAPTURE_SIZE, GPU_MEMORY_UTILIZATION,
    DATA_PARALLEL_SIZE, MAX_DATA_PARALLEL_SIZE, DATA_PARALLEL_SIZE_LOCAL, DATA_PARALLEL_START_RANK,
    DATA_PARALLEL_RANK, DATA_PARALLEL_HYBRID_LB, DATA_PARALLEL_EXTERNAL_LB, DATA_PARALLEL_ADDRESS,
    ENABLE_EXPERT_PARALLEL, DATA_PARALLEL_BIND_ADDRESS, DATA_PARALLEL_RPC_PORT, HEADLESS, DEPLOYMENT_ID,
    SHRINK_EXPERT_GROUP_AFTER, ENGINE_HOST, ENGINE_ADVERTISE_HOST,
    API_SERVER_COUNT, HOST, PORT, GRPC_PORT, API_KEY, REQUEST_TIMEOUT,
    OPEN_METRICS, ANY_MODEL_NAME, ALLOWED_ORIGINS, PAGE, ROOT_PATH, MAX_BODY_SIZE, PING_INTERVAL,
    SMG, RESPONSE_STORE_SIZE, RESPONSE_TTL, *FRONT,
    MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS, BLOCK_SIZE, NUM_BLOCKS, KV_CACHE_MEMORY, ENABLE_PREFIX_CACHING,
    MAX_NUM_QUEUED_REQS, NUM_THREADS, NUM_SPARE_THREADS,
    SHUTDOWN_TIMEOUT, READY_TIMEOUT, HEARTBEAT_INTERVAL, HEARTBEAT_TIMEOUT, HEAD_TIMEOUT, MAX_EARLY_DEATHS,
    ON_GIVEN_UP, MAX_RANK_LOSSES, RUNTIME_DIR, *DOORS,
    LOG_LEVEL, LOG_FORMAT,
)  # fmt: skip
# Those that mean something without ports and other nodes.
OFFLINE = tuple(
    flag for flag in SERVE if flag.group in {MODEL, MEMORY, LOGGING} or flag.name == DATA_PARALLEL_SIZE.name
)
HEAD = (
    DATA_PARALLEL_SIZE, MAX_DATA_PARALLEL_SIZE, WANTED_SIZE, DEPLOYMENT_ID, LOCAL_RANKS, CONFIGURATION, ADVICE,
    BIND_HOST, HEAD_PORT, UNIX_PATH, TARGETS_FILE, HEALTH_PORT, READY_TIMEOUT, HEARTBEAT_INTERVAL, HEARTBEAT_TIMEOUT,
    SHRINK_EXPERT_GROUP_AFTER, *DOORS, LOG_LEVEL, LOG_FORMAT,
)  # fmt: skip
ENGINE = (
    SERVED_MODEL_NAME, DTYPE, DEVICE, KERNELS, QUANTIZATION, LOAD_FORMAT, SEED, MAX_MODEL_LEN, MODEL_CACHE,
    ATTENTION_BACKEND, ENFORCE_EAGER, MAX_CUDAGRAPH_CAPTURE_SIZE, GPU_MEMORY_UTILIZATION,
    RANK, EXPECTED_SIZE, ENABLE_EXPERT_PARALLEL, ENGINE_DEPLOYMENT_ID, LOCAL, HEADLESS,
    HEAD_TARGET, BIND_HOST, ENGINE_PORT, ADVERTISE_HOST, UNIX_PATH, HEALTH_PORT,
    MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS, BLOCK_SIZE, NUM_BLOCKS, KV_CACHE_MEMORY, ENABLE_PREFIX_CACHING,
    MAX_NUM_QUEUED_REQS, NUM_THREADS, NUM_SPARE_THREADS, SHUTDOWN_TIMEOUT, HEAD_TIMEOUT, *DOORS, LOG_LEVEL,
    LOG_FORMAT,
)  # fmt: skip
GATEWAY = (
    HEAD_TARGET, GATEWAY_NAME, GATEWAY_RANKS, HTTP_FD, REUSE_PORT, METRICS_DIR, WAIT_UNTIL_READY, HOST, PORT, GRPC_PORT,
    API_KEY, REQUEST_TIMEOUT, OPEN_METRICS, ANY_MODEL_NAME, ALLOWED_ORIGINS, PAGE, ROOT_PATH, MAX_BODY_SIZE,
    PING_INTERVAL, SMG, RESPONSE_STORE_SIZE, RESPONSE_TTL, UNIX_PATH, *FRONT,
    SHUTDOWN_TIMEOUT, DRAIN_DELAY, MAX_RANK_LOSSES, *DOORS, LOG_LEVEL, LOG_FORMAT,
)  # fmt: skip
URL = Flag("--url", CONNECTION, "Where the server is.", values.text, "http://127.0.0.1:8000", metavar="URL")
CLIENT_KEY = Flag("--api-key", CONNECTION, "Key to send.", values.text, metavar="KEY", secret=True)
CHAT_MODEL = Flag("--model", CONNECTION, "Model to ask.", values.text, metavar="NAME",
                  shown_default="the first one served", short_variable="MUSTER_CHAT_MODEL")  # fmt: skip
SYSTEM = Flag("--system", MODEL, "System prompt to begin with.", values.text, metavar="TEXT")
TEMPERATURE = Flag("--temperature", MODEL, "0 always takes the likeliest token.", values.number(0.0, 2.0),
                   metavar="NUMBER", shown_default="the model's")  # fmt: skip
MAX_TOKENS = Flag("--max-tokens", MODEL, "Longest answer.", values.whole_number(1), metavar="TOKENS", unit="tokens",
                  shown_default="what fits into the context")  # fmt: skip
STATUS_TIMEOUT = Flag("--timeout", CONNECTION, "Longest wait for the head's answer.", values.positive_seconds, 5.0,
                      metavar="SECONDS", unit="seconds")  # fmt: skip

INPUT_FILE = Flag("--input-file", CONNECTION, "Requests, one JSON object a line; - is standard input.", values.text,
                  short="-i", metavar="FILE")  # fmt: skip
OUTPUT_FILE = Flag("--output-file", CONNECTION, "Results, a line for each of the input's; - is standard output.",
                   values.text, short="-o", metavar="FILE")  # fmt: skip
BATCH_URL = Flag("--url", CONNECTION, "Server to ask.", values.text, metavar="URL", short_variable="MUSTER_BATCH_URL",
                 shown_default="http://127.0.0.1:8000, unless MODEL or flags follow --")  # fmt: skip
MAX_CONCURRENT = Flag(
    "--max-concurrent", CONNECTION, "Most requests at one time.", values.whole_number(1, 65536), metavar="N",
    shown_default="64 of a server, twice what all ranks run at a time of a run of its own",
)  # fmt: skip
OFFLINE_SWITCH = Flag("--offline", CONNECTION, "Start ranks for the batch, and no server; so does what follows --.",
                      None, False)  # fmt: skip
RESUME = Flag("--resume", CONNECTION, "Keep what --output-file has, and ask for what it has not or what failed.", None,
              False)  # fmt: skip
TOP_INTERVAL = Flag("--interval", CONNECTION, "Time between two looks.", values.positive_seconds, 1.0,
                    metavar="SECONDS", unit="seconds")  # fmt: skip
DRAIN_TIMEOUT = Flag("--timeout", OPERATION, "Time for running requests to finish; then they are aborted.",
                     values.seconds, metavar="SECONDS", shown_default="as long as they take",
                     short_variable="MUSTER_DRAIN_TIMEOUT")  # fmt: skip
RETURN_TIMEOUT = Flag("--ready-timeout", OPERATION, "Time for a started rank to be ready.", values.positive_seconds,
                      metavar="SECONDS", shown_default="the head's")  # fmt: skip

# Of commands that ask a deployment's head.
KNOWN_HEAD_TARGET = Flag(
    "--head-target", CONNECTION, "gRPC target of the head.", values.text, metavar="TARGET",
    shown_default=f"that of the deployment running here, else 127.0.0.1:{DEFAULT_RPC_PORT}",
)  # fmt: skip
LOOK_IN = Flag("--runtime-dir", CONNECTION, "Where `muster serve` was told to make its directory.", values.path,
               metavar="DIRECTORY", shown_default="$XDG_RUNTIME_DIR and the temporary directory")  # fmt: skip
ASKING_HEAD = (KNOWN_HEAD_TARGET, LOOK_IN, *DIALLING)

DOCTOR = (
    DTYPE, DEVICE, KERNELS, MODEL_CACHE, DATA_PARALLEL_ADDRESS, DATA_PARALLEL_RPC_PORT, HOST, PORT, GRPC_PORT,
    RUNTIME_DIR,
)  # fmt: skip
CHAT = (URL, CLIENT_KEY, CHAT_MODEL, SYSTEM, TEMPERATURE, MAX_TOKENS)
STATUS = (*ASKING_HEAD, STATUS_TIMEOUT)
RUN_BATCH = (INPUT_FILE, OUTPUT_FILE, RESUME, OFFLINE_SWITCH, BATCH_URL, CLIENT_KEY, MAX_CONCURRENT)
TOP = (*ASKING_HEAD, TOP_INTERVAL, STATUS_TIMEOUT)
DRAIN = (*ASKING_HEAD, DRAIN_TIMEOUT)
UNDRAIN = ASKING_HEAD
RESTART = (*ASKING_HEAD, DRAIN_TIMEOUT, RETURN_TIMEOUT)
SCALE = (*ASKING_HEAD, DRAIN_TIMEOUT, RETURN_TIMEOUT)
CERTS_DIRECTORY = Flag(
    "--directory", SECURITY, "Where the files are written; an authority that lies there is used again.", values.path,
    Path("certs"), short="-o", metavar="DIRECTORY", short_variable="MUSTER_CERTS_DIRECTORY",
)  # fmt: skip
CERTS_DAYS = Flag("--days", SECURITY, "How long the certificates are valid.", values.whole_number(1, 36500), 365,
                  metavar="DAYS", unit="days", short_variable="MUSTER_CERTS_DAYS")  # fmt: skip
CERTS_NAMES = Flag("--also", SECURITY, "Further names and addresses in every certificate made.", values.text, (),
                   metavar="NAME", several=True, short_variable="MUSTER_CERTS_ALSO")  # fmt: skip
CONFORMANCE_SERVICE = Flag("--service", CONNECTION, "What TARGET is: engine or head.", values.one_of("engine", "head"),
                           "engine", short_variable="MUSTER_CONFORMANCE_SERVICE")  # fmt: skip
CONFORMANCE = (CONFORMANCE_SERVICE, *DIALLING)
CERTS = (CERTS_DIRECTORY, CERTS_DAYS, CERTS_NAMES)
ALL = (*SERVE, *HEAD, *ENGINE, *GATEWAY, *CHAT, *STATUS, *TOP, *RESTART, *RUN_BATCH, *CERTS, *CONFORMANCE)
