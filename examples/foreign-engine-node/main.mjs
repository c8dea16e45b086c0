// A rank of a Muster deployment that is written in JavaScript: node main.mjs [HEAD_TARGET] [RANK]
import os from "node:os";
import grpc from "@grpc/grpc-js";
import { HealthImplementation } from "grpc-health-check";
import { CoordinatorService, EngineService, RendezvousService } from "./contract.mjs";
import { Engine } from "./engine.mjs";
import { Membership, reportLoad } from "./membership.mjs";
import { engineService } from "./service.mjs";

const [headTarget = "127.0.0.1:29550", rankWanted] = process.argv.slice(2);
const host = process.env.MUSTER_ENGINE_HOST ?? "127.0.0.1"; // to listen on, and where gateways dial
const incarnation = String(Date.now() * 1000); // microseconds since the epoch
const version = "bigram-node";
const keepalive = { "grpc.keepalive_time_ms": 10_000, "grpc.keepalive_timeout_ms": 5_000 };
const dial = (Service, target) => new Service(target, grpc.credentials.createInsecure(), keepalive);
const rendezvous = dial(RendezvousService, headTarget);

// A rank that serves. A deployment is of one model: this engine takes over the facts of it and its tokenizer.
async function findPeer() {
  for await (const { roster } of rendezvous.WatchRoster({}, new grpc.Metadata({ waitForReady: true }))) {
    const peer = roster.ranks.find(({ state }) => state === "RANK_STATE_READY");
    if (peer) return peer;
  }
  throw new Error("the head ended the roster");
}

async function tokenizerOf({ targets }) {
  const client = dial(EngineService, targets.find((target) => !target.startsWith("unix:")) ?? targets[0]);
  const chunks = [];
  for await (const { data } of client.GetTokenizer({})) chunks.push(data);
  client.close();
  return Buffer.concat(chunks);
}

// What it shares with the others, and what it is. The head refuses another fingerprint, which promises equal logits: an
// engine that is to serve people loads the same checkpoint; this one is for trying the contract and only says so.
function modelOf({ servedModelNames, maxModelLen, vocabSize, eosTokenIds, bosTokenId, fingerprint, blockSize }) {
  const shared = { servedModelNames, maxModelLen, vocabSize, eosTokenIds, bosTokenId, fingerprint, blockSize };
  return { ...shared, architecture: "bigram", dtype: "float32", maxNumSeqs: 64, maxNumBatchedTokens: 64 };
}

async function listen(server) {
  const bind = (done) => server.bindAsync(`${host}:0`, grpc.ServerCredentials.createInsecure(), done);
  return new Promise((resolve, reject) => bind((error, port) => (error ? reject(error) : resolve(port))));
}

const peer = await findPeer();
const tokenizer = await tokenizerOf(peer);
const { roster, configuration } = await new Promise((resolve, reject) =>
  rendezvous.GetDeployment({}, (error, answer) => (error ? reject(error) : resolve(answer))),
);
const engine = new Engine(modelOf(peer.model));
const identity = { incarnation, rank: undefined };
const health = new HealthImplementation({ "": "SERVING", "muster.v1.EngineService": "SERVING" });
engine.onDraining = (draining) => health.setStatus("muster.v1.EngineService", draining ? "NOT_SERVING" : "SERVING");
const server = new grpc.Server(keepalive);
server.addService(EngineService.service, engineService(engine, identity, tokenizer, version));
health.addToServer(server);
const port = await listen(server);

const membership = new Membership({
  rendezvous,
  engine,
  hello: {
    protocol: { min: 1, max: 1 },
    productVersion: version,
    deploymentId: roster.deploymentId,
    rank: rankWanted === undefined ? undefined : Number(rankWanted),
    host: os.hostname(),
    hostId: peer.host === os.hostname() ? peer.hostId : os.hostname(), // loopback targets are of use on an equal host only
    pid: process.pid,
    incarnation,
    configuration,
  },
  ready: () => ({ targets: [`${host}:${port}`], model: engine.model }),
  welcomed(rank) {
    if (identity.rank === undefined) reportLoad(dial(CoordinatorService, headTarget), { rank, incarnation }, engine);
    identity.rank = rank;
  },
  ended(exitCode, why) {
    console.log(`ends: ${why}`);
    process.exit(exitCode);
  },
});
console.log(`listening on ${host}:${port}`);
membership.join();
for (const signal of ["SIGTERM", "SIGINT"]) process.once(signal, () => membership.stop(signal, { seconds: "10", nanos: 0 }));
