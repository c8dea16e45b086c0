"""The contract, version 1: `from muster import v1 as wire`, then `wire.Hello`."""

from muster.v1.admin_pb2 import *
from muster.v1.admin_pb2_grpc import *
from muster.v1.coordinator_pb2 import *
from muster.v1.coordinator_pb2_grpc import *
from muster.v1.engine_pb2 import *
from muster.v1.engine_pb2_grpc import *
from muster.v1.inference_pb2 import *
from muster.v1.inference_pb2_grpc import *
from muster.v1.load_pb2 import *
from muster.v1.model_pb2 import *
from muster.v1.peer_pb2 import *
from muster.v1.peer_pb2_grpc import *
from muster.v1.rendezvous_pb2 import *
from muster.v1.rendezvous_pb2_grpc import *
from muster.v1.sampling_pb2 import *
