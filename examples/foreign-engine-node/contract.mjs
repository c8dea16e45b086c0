// The contract, loaded from its .proto files, and statuses with google.rpc details.
import { fileURLToPath } from "node:url";
import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";
import protobuf from "protobufjs";

const path = (relative) => fileURLToPath(new URL(relative, import.meta.url));

// 64-bit numbers as strings, for they may be beyond what a JavaScript number holds; absent optional fields as absent.
const definition = loader.loadSync(
  ["coordinator", "engine", "rendezvous"].map((name) => `muster/v1/${name}.proto`),
  { includeDirs: [path("../../protos")], longs: String, enums: String, defaults: true, oneofs: true },
);
export const { CoordinatorService, EngineService, RendezvousService } = grpc.loadPackageDefinition(definition).muster.v1;

const rpc = protobuf.loadSync(path("../protos/google/rpc/error_details.proto")).lookup("google.rpc");

// What a handler throws. `violations` are { field, description }; `retryAfterS` invites to try again.
export class RpcError extends Error {
  constructor(code, reason, message, { violations = [], retryAfterS } = {}) {
    super(message);
    Object.assign(this, { code, reason, violations, retryAfterS });
  }

  // As a gRPC status, with the details in its trailer.
  get status() {
    const details = [["ErrorInfo", { reason: this.reason, domain: "muster.dev" }]];
    if (this.violations.length) details.push(["BadRequest", { fieldViolations: this.violations }]);
    if (this.retryAfterS) details.push(["RetryInfo", { retryDelay: { seconds: this.retryAfterS } }]);
    const any = ([name, value]) => ({
      type_url: `type.googleapis.com/google.rpc.${name}`,
      value: rpc[name].encode(rpc[name].fromObject(value)).finish(),
    });
    const status = rpc.Status.fromObject({ code: this.code, message: this.message, details: details.map(any) });
    const metadata = new grpc.Metadata();
    metadata.set("grpc-status-details-bin", Buffer.from(rpc.Status.encode(status).finish()));
    return { code: this.code, details: this.message, metadata };
  }
}

export function invalid(violations, reason = "INVALID_REQUEST") {
  const message = violations.map(({ field, description }) => `${field} ${description}`).join("; ");
  return new RpcError(grpc.status.INVALID_ARGUMENT, reason, message, { violations });
}

export const seconds = (duration) => Number(duration.seconds) + duration.nanos / 1e9;
