// A client of Muster's gRPC services: watches the load, chats, generates on one rank, reads an error, cancels.
import { status } from "@grpc/grpc-js";
import {
  CoordinatorService,
  EngineService,
  InferenceService,
  RendezvousService,
  deadline,
  detailsOf,
  dial,
  unary,
} from "./muster.mjs";

const HEAD = process.env.MUSTER_HEAD ?? "127.0.0.1:29550";
const GATEWAY = process.env.MUSTER_GATEWAY ?? "127.0.0.1:8001";
const RANK = Number(process.env.MUSTER_RANK ?? 0);

// Snapshots of all ranks: at once, when something changed, and here at least every half second.
async function watchLoad(coordinator) {
  const call = coordinator.WatchLoad({ heartbeatInterval: { nanos: 500_000_000 } }, deadline());
  let left = 3;
  for await (const { sequence, loads } of call) {
    const ranks = loads.map(({ rank, stats }) => `rank ${rank} waiting ${stats.waiting} running ${stats.running}`);
    console.log(`load    snapshot ${sequence}: ${ranks.join(", ")}`);
    if (--left === 0) break; // leaving the loop destroys the stream, which cancels the call
  }
}

// The text as it comes. Without the message with usage, the stream was cut off.
async function chat(inference) {
  const messages = [{ role: "user", content: "What is gravity?" }];
  const options = { sampling: { temperature: 0 }, conditions: { maxTokens: 24 } };
  let reason, usage;
  process.stdout.write("chat    ");
  for await (const response of inference.Chat({ messages, options }, deadline())) {
    process.stdout.write(response.delta?.text.replaceAll("\n", " ") ?? "");
    if (response.delta && response.delta.finishReason !== "FINISH_REASON_UNSPECIFIED") reason = response.delta.finishReason;
    usage = response.usage ?? usage;
  }
  if (!usage) throw new Error("the answer was cut off");
  console.log(`\nchat    ${reason}, ${usage.promptTokens} prompt tokens, ${usage.completionTokens} generated`);
}

// Where a rank serves. Unix sockets are for processes of its own host.
async function targetOf(rank, rendezvous) {
  const { roster } = await unary(rendezvous, "GetDeployment", {});
  const target = roster.ranks[rank]?.targets.find((each) => !each.startsWith("unix:"));
  if (!target) throw new Error(`rank ${rank} does not serve`);
  return target;
}

// Token ids in, token ids out, past the gateway's balancing: on this rank and no other.
async function generate(inference, engine) {
  const prompt = await unary(inference, "Tokenize", { text: "Once upon a time" });
  const request = {
    promptTokenIds: prompt.tokenIds,
    sampling: { temperature: 0 },
    stop: { maxTokens: 8, ignoreEos: true },
  };
  const tokenIds = [];
  let last;
  for await (last of engine.Generate(request, deadline())) tokenIds.push(...last.tokenIds); // deltas, never cumulative
  if (!last?.usage) throw new Error("the answer was cut off");
  const { text } = await unary(inference, "Detokenize", { tokenIds });
  console.log(`tokens  rank ${RANK}: ${tokenIds.join(" ")} = ${JSON.stringify(text)}`);
  const { promptTokens, completionTokens } = last.usage;
  console.log(`tokens  ${last.finishReason}, ${promptTokens} prompt tokens, ${completionTokens} generated`);
}

// What programs go by are status, reason and fields; messages are for people.
async function provokeError(engine) {
  try {
    for await (const _ of engine.Generate({ promptTokenIds: [1], sampling: { temperature: 9 } }, deadline()));
  } catch (error) {
    console.log(`error   ${status[error.code]}: ${error.details}`);
    const details = detailsOf(error);
    for (const { reason, domain } of details.ErrorInfo) console.log(`error   reason ${reason}, domain ${domain}`);
    for (const { field, description } of details.BadRequest.flatMap((each) => each.fieldViolations)) {
      console.log(`error   field ${field}: ${description}`);
    }
    for (const { retryDelay } of details.RetryInfo) console.log(`error   try again in ${retryDelay.seconds} s`);
  }
}

// Cancelling the call aborts the request in the engine before its next step.
async function cancel(engine) {
  const call = engine.Generate({ promptTokenIds: [1], stop: { maxTokens: 500, ignoreEos: true } }, deadline());
  let numTokens = 0;
  try {
    for await (const { tokenIds } of call) {
      numTokens += tokenIds.length;
      if (numTokens >= 3) call.cancel();
    }
  } catch (error) {
    console.log(`cancel  ${status[error.code]} after ${numTokens} tokens`);
  }
}

const inference = dial(InferenceService, GATEWAY);
await watchLoad(dial(CoordinatorService, HEAD));
await chat(inference);
const engine = dial(EngineService, await targetOf(RANK, dial(RendezvousService, HEAD)));
await generate(inference, engine);
await provokeError(engine);
await cancel(engine);
process.exit(0); // idle connections would keep the process
