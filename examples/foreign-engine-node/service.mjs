// EngineService: the calls of gateways, clients and debuggers.
import { createHash } from "node:crypto";
import { status } from "@grpc/grpc-js";
import { RpcError, invalid, seconds } from "./contract.mjs";

const CHUNK_BYTES = 64 * 1024;

export function engineService(engine, identity, tokenizer, productVersion) {
  return {
    GetModel: (_, answer) => answer(null, { model: engine.model }),
    GetStatus: (_, answer) =>
      answer(null, {
        ...identity,
        state: engine.draining ? "RANK_STATE_DRAINING" : "RANK_STATE_READY",
        phase: "ENGINE_PHASE_SERVING",
        load: engine.load,
        productVersion,
        device: "cpu",
        numThreads: 1,
      }),
    Abort: ({ request }, answer) => answer(null, { aborted: request.requestIds.filter((id) => engine.abort(id)).length }),
    GetTokenizer(call) {
      const sha256 = createHash("sha256").update(tokenizer).digest("hex");
      for (let start = 0; start < tokenizer.length; start += CHUNK_BYTES) {
        const end = start + CHUNK_BYTES;
        call.write({ data: tokenizer.subarray(start, end), sha256: end >= tokenizer.length ? sha256 : "" });
      }
      call.end();
    },
    Generate: (call) => generate(engine, call),
    Attach: (call) => attach(engine, identity, call),
  };
}

function generate(engine, call) {
  let live;
  const tell = ({ started, tokenId, finish }) => {
    call.write({ prompt: started, tokenIds: tokenId === undefined ? [] : [tokenId], ...finish });
    if (finish) call.end();
  };
  try {
    live = engine.submit(call.request, tell);
    call.on("cancelled", () => engine.drop(live)); // also at the call's deadline
  } catch (error) {
    call.emit("error", error.status ?? error);
  }
}

// A gateway's stream: requests by handle in, out one message per step with everything the gateway is owed.
function attach(engine, identity, call) {
  const live = new Map(); // handle → request
  let opened = false;
  let halfClosed = false;
  let owed;
  const clear = () => (owed = { tokens: new Map(), started: [], finished: [], failed: [] });

  function flush() {
    if (call.writableNeedDrain) return; // a slow reader gets it all in one message, later
    const { tokens, ...ends } = owed;
    if (tokens.size || Object.values(ends).some((list) => list.length)) {
      const counts = [...tokens.values()].map((ids) => ids.length);
      const tokenCounts = counts.every((count) => count === 1) ? [] : counts;
      const outputs = { step: engine.step, handles: [...tokens.keys()], tokenCounts, tokenIds: [...tokens.values()].flat() };
      call.write({ outputs: { ...outputs, ...ends } });
      clear();
    }
    if (halfClosed && live.size === 0) {
      engine.onStep.delete(flush);
      call.end();
    }
  }

  function leave() {
    engine.onStep.delete(flush);
    for (const request of live.values()) forget(request);
    live.clear();
  }

  function forget(request) {
    clearTimeout(request.timer);
    engine.drop(request);
  }

  function submit({ handle, request, timeout }) {
    const isOwed = [...owed.finished, ...owed.failed].some((end) => end.handle === handle);
    if (live.has(handle) || isOwed) throw invalid([{ field: "submit.handle", description: `${handle} is in use` }], "PROTOCOL_ERROR");
    const fail = ({ code, reason, message, violations, retryAfterS }) => {
      live.delete(handle);
      const retryAfter = retryAfterS && { seconds: retryAfterS };
      owed.failed.push({ handle, code, reason, message, field: violations[0]?.field ?? "", retryAfter });
    };
    try {
      const taken = engine.submit(request, ({ started, tokenId, finish }) => {
        if (started) owed.started.push({ handle, prompt: started });
        if (tokenId !== undefined) owed.tokens.set(handle, [...(owed.tokens.get(handle) ?? []), tokenId]);
        if (!finish) return;
        clearTimeout(taken.timer);
        live.delete(handle);
        owed.finished.push({ handle, ...finish });
      });
      live.set(handle, taken);
      if (!timeout) return;
      taken.timer = setTimeout(() => {
        engine.drop(taken);
        fail(new RpcError(status.DEADLINE_EXCEEDED, "REQUEST_TIMEOUT", "the request did not finish within its timeout"));
        flush();
      }, Math.min(1000 * seconds(timeout), 2 ** 31 - 1));
    } catch (error) {
      if (!(error instanceof RpcError)) throw error;
      fail(error);
    }
  }

  function take(frame) {
    if (opened === (frame.frame === "open")) {
      throw invalid([{ field: "open", description: "must be the first frame, and comes once" }], "PROTOCOL_ERROR");
    }
    opened = true;
    if (frame.open) call.write({ attached: { ...identity, model: engine.model } });
    else if (frame.submit) submit(frame.submit);
    else if (frame.abort) for (const handle of frame.abort.handles) live.has(handle) && engine.abort(live.get(handle).id);
    else throw invalid([{ field: "frame", description: "is of a kind this engine does not know" }], "PROTOCOL_ERROR");
    flush();
  }

  clear();
  engine.onStep.add(flush);
  call.on("drain", flush);
  call.on("cancelled", leave);
  call.on("data", (frame) => {
    try {
      take(frame);
    } catch (error) {
      leave();
      call.emit("error", error.status ?? error);
    }
  });
  call.on("end", () => {
    halfClosed = true;
    flush();
  });
}
