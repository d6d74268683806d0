# A stock gRPC client: generated code and grpcio, nothing of Culvert's. Arguments: agent, port of an echo, folder of protos.
import importlib, sys, tempfile
import grpc
from grpc_tools import protoc

agent, port, protos = sys.argv[1], int(sys.argv[2]), sys.argv[3]
out = tempfile.mkdtemp()
assert protoc.main(["protoc", "-I" + protos, "--python_out=" + out, "--grpc_python_out=" + out, "tunnel.proto"]) == 0
sys.path.insert(0, out)
pb = importlib.import_module("tunnel_pb2")
stub = importlib.import_module("tunnel_pb2_grpc").AgentStub(grpc.insecure_channel(agent))

print("version", stub.Describe(pb.DescribeRequest(version="0.1.0"), timeout=10).version)

def frames():
    yield pb.Frame(open=pb.Open(port=port, original_dst="test:1", stream=1))
    for _ in range(3):
        yield pb.Frame(data=b"x" * 100_000)

answers = stub.Open(frames(), timeout=20)
print("opened", pb.DialCode.Name(next(answers).opened.code).removeprefix("DIAL_CODE_"))
print("echoed", sum(len(frame.data) for frame in answers))
