// The requests of this rank and the step loop that advances all of them, one token each per step.
import { randomBytes } from "node:crypto";
import { status } from "@grpc/grpc-js";
import { nextToken } from "./bigram.mjs";
import { RpcError, invalid } from "./contract.mjs";

const STEP_MS = 2;
const IDLE_MS = 100; // the loop also turns without work, for the heartbeats tell when it turned last
const MAX_RUNNING = 64;
const MAX_LIVE = 512;

// What the contract lets a request ask for and a bigram model cannot do: an error, never ignored.
const REFUSED = {
  logprobs: (r) => r.logprobs !== undefined,
  prompt_logprobs: (r) => r.promptLogprobs !== undefined,
  constraint: (r) => r.constraint?.kind !== undefined,
  "sampling.logit_bias": (r) => Object.keys(r.sampling?.logitBias ?? {}).length > 0,
  "sampling.allowed_token_ids": (r) => r.sampling?.allowedTokenIds.length > 0,
  "sampling.bad_words": (r) => r.sampling?.badWords.length > 0,
  "sampling.presence_penalty": (r) => (r.sampling?.presencePenalty ?? 0) !== 0,
  "sampling.frequency_penalty": (r) => (r.sampling?.frequencyPenalty ?? 0) !== 0,
  "sampling.repetition_penalty": (r) => (r.sampling?.repetitionPenalty ?? 1) !== 1,
};

export class Engine {
  draining = false;
  onDraining = () => {}; // called with what `draining` has become
  step = 0;
  generated = 0;
  turnedAt = Date.now();
  onStep = new Set(); // called after every step
  #live = new Map(); // request id → request, in the order of their arrival
  #timer;

  constructor(model) {
    this.model = model;
    this.#turn();
  }

  get load() {
    const running = Math.min(this.#live.size, MAX_RUNNING);
    return { running, waiting: this.#live.size - running, generatedTokensTotal: this.generated, stepsTotal: this.step };
  }

  // Takes a request. `tell({ started, tokenId, finish })` is called in steps, and once with the finish.
  submit(request, tell) {
    this.#check(request);
    const { sampling, stop } = request;
    const prompt = request.promptTokenIds;
    const room = this.model.maxModelLen - prompt.length;
    const live = {
      id: request.requestId || randomBytes(8).toString("hex"),
      context: [...prompt, ...request.generatedTokenIds],
      promptLength: prompt.length,
      sampling: { ...sampling, seed: sampling?.seed ?? randomBytes(8).readBigInt64BE() },
      maxTokens: Math.min(stop?.maxTokens ?? room, room),
      minTokens: stop?.minTokens ?? 0,
      stops: new Set([...(stop?.stopTokenIds ?? []), ...(stop?.ignoreEos ? [] : this.model.eosTokenIds)]),
      started: false,
      tell,
    };
    this.#live.set(live.id, live);
    if (this.#live.size === 1) this.#turnIn(STEP_MS);
    return live;
  }

  // Ends a live request with FINISH_REASON_ABORT; false when it is not live.
  abort(id) {
    const live = this.#live.get(id);
    if (live) this.#finish(live, {}, "FINISH_REASON_ABORT");
    return live !== undefined;
  }

  drain(draining) {
    this.draining = draining;
    this.onDraining(draining);
  }

  abortAll() {
    for (const id of [...this.#live.keys()]) this.abort(id);
  }

  // Whoever asked is gone: ends it without a word.
  drop(live) {
    if (this.#live.get(live.id) === live) this.#live.delete(live.id);
  }

  #turnIn(ms) {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#turn(), ms);
  }

  #turn() {
    this.turnedAt = Date.now();
    if (this.#live.size) {
      this.step++;
      for (const live of [...this.#live.values()].slice(0, MAX_RUNNING)) this.#advance(live);
      for (const call of this.onStep) call();
    }
    this.#turnIn(this.#live.size ? STEP_MS : IDLE_MS);
  }

  #advance(live) {
    const news = live.started ? {} : { started: { numTokens: live.promptLength } };
    live.started = true;
    const generated = live.context.length - live.promptLength;
    if (generated >= live.maxTokens) return this.#finish(live, news, "FINISH_REASON_LENGTH");
    const forbidden = generated < live.minTokens ? live.stops : new Set();
    const tokenId = nextToken(live.context, live.promptLength, live.sampling, forbidden);
    live.context.push(tokenId);
    this.generated++;
    news.tokenId = tokenId;
    if (live.stops.has(tokenId)) return this.#finish(live, news, "FINISH_REASON_STOP", tokenId);
    if (generated + 1 >= live.maxTokens) return this.#finish(live, news, "FINISH_REASON_LENGTH");
    live.tell(news);
  }

  #finish(live, news, finishReason, stopTokenId) {
    this.#live.delete(live.id);
    const usage = { promptTokens: live.promptLength, completionTokens: live.context.length - live.promptLength };
    live.tell({ ...news, finish: { finishReason, stopTokenId, usage } });
  }

  #check(request) {
    const retry = { retryAfterS: 1 };
    if (this.draining) throw new RpcError(status.UNAVAILABLE, "ENGINE_DRAINING", "this engine is draining", retry);
    const wrong = [];
    const expect = (good, field, description) => good || wrong.push({ field, description });
    const { vocabSize, maxModelLen } = this.model;
    for (const [field, ids] of [["prompt", request.promptTokenIds], ["generated", request.generatedTokenIds]]) {
      const i = ids.findIndex((id) => id >= vocabSize);
      expect(i < 0, `${field}_token_ids[${i}]`, `is ${ids[i]}; token ids of this model are 0 to ${vocabSize - 1}`);
    }
    const length = request.promptTokenIds.length;
    expect(length > 0, "prompt_token_ids", "is empty; send at least one token id");
    expect(length <= maxModelLen, "prompt_token_ids", `has ${length} token ids; this model takes ${maxModelLen}`);
    expect(request.requestId.length <= 512, "request_id", "is longer than 512 characters");
    for (const [name, field, most] of [["temperature", "temperature", 2], ["topP", "top_p", 1], ["minP", "min_p", 1]]) {
      const value = request.sampling?.[name] ?? 0;
      expect(value >= 0 && value <= most, `sampling.${field}`, `is ${value}; must be between 0 and ${most}`);
    }
    for (const [field, isAsked] of Object.entries(REFUSED)) {
      expect(!isAsked(request), field, "cannot be had of this engine, a bigram model without logits; leave it out");
    }
    if (wrong.length) throw invalid(wrong);
    if (this.#live.has(request.requestId)) {
      throw new RpcError(status.ALREADY_EXISTS, "DUPLICATE_REQUEST_ID", `request_id ${request.requestId} is live`);
    }
    if (this.#live.size >= MAX_LIVE) throw new RpcError(status.RESOURCE_EXHAUSTED, "QUEUE_FULL", "the queue is full", retry);
  }
}
