// The contract, loaded from its .proto files, and the channels to its services.
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";
import protobuf from "protobufjs";

const PROTOS = fileURLToPath(new URL("../../protos", import.meta.url));
const DETAILS = fileURLToPath(new URL("../protos/google/rpc/error_details.proto", import.meta.url));

// 64-bit numbers as strings, for they may be beyond what a JavaScript number holds; absent optional fields as absent.
const definition = loader.loadSync(
  ["coordinator", "engine", "inference", "rendezvous"].map((name) => `muster/v1/${name}.proto`),
  { includeDirs: [PROTOS], longs: String, enums: String, defaults: true, oneofs: true },
);
export const { CoordinatorService, EngineService, InferenceService, RendezvousService } =
  grpc.loadPackageDefinition(definition).muster.v1;

// MUSTER_TLS_CA turns TLS on; MUSTER_TLS_CERT and MUSTER_TLS_KEY are for mutual TLS; MUSTER_TOKEN is sent with each call.
const file = (name) => (process.env[name] ? readFileSync(process.env[name]) : null);
const credentials = process.env.MUSTER_TLS_CA
  ? grpc.credentials.createSsl(file("MUSTER_TLS_CA"), file("MUSTER_TLS_KEY"), file("MUSTER_TLS_CERT"))
  : grpc.credentials.createInsecure();

function authorize(options, nextCall) {
  return new grpc.InterceptingCall(nextCall(options), {
    start(metadata, listener, next) {
      if (process.env.MUSTER_TOKEN) metadata.set("authorization", `Bearer ${process.env.MUSTER_TOKEN}`);
      next(metadata, listener);
    },
  });
}

export const dial = (Service, target) => new Service(target, credentials, { interceptors: [authorize] });

export const deadline = (seconds = 60) => ({ deadline: Date.now() + 1000 * seconds });

// One answer as a promise: unary(client, "Tokenize", { text: "…" }).
export function unary(client, method, request) {
  return new Promise((resolve, reject) => {
    client[method](request, deadline(), (error, response) => (error ? reject(error) : resolve(response)));
  });
}

const rpc = protobuf.loadSync(DETAILS).lookup("google.rpc");

// The messages in an error's trailer, by their names: { ErrorInfo: [...], BadRequest: [...], RetryInfo: [...] }.
export function detailsOf(error) {
  const found = { ErrorInfo: [], BadRequest: [], RetryInfo: [] };
  const [trailer] = error.metadata?.get("grpc-status-details-bin") ?? [];
  for (const { type_url, value } of trailer ? rpc.Status.decode(trailer).details : []) {
    const name = type_url.split("google.rpc.").at(-1);
    if (name in found) found[name].push(rpc[name].decode(value));
  }
  return found;
}
