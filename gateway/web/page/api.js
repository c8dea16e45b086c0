// The server: requests with the key, errors with what a person needs, streams as events.

const KEY = "muster.key";

export class ApiError extends Error {
  constructor(message, { status = 0, code = null, param = null, requestId = null, retryAfterS = null } = {}) {
    super(message);
    Object.assign(this, { status, code, param, requestId, retryAfterS });
  }
}

function stored(storage) {
  try {
    return storage().getItem(KEY) || "";
  } catch {
    return "";
  }
}

let ownKey = stored(() => sessionStorage) || stored(() => localStorage);

export const apiKey = () => ownKey;
export const isKeyKept = () => stored(() => localStorage) !== "";

/** `keep`: beyond this tab. An empty key forgets. */
export function setApiKey(key, keep) {
  ownKey = key;
  for (const [storage, wanted] of [[() => sessionStorage, !keep], [() => localStorage, keep]]) {
    try {
      if (key && wanted) storage().setItem(KEY, key);
      else storage().removeItem(KEY);
    } catch {
      // it stays in memory
    }
  }
}

// Header values are bytes; this is how a text is written as its UTF-8.
const asHeader = text => String.fromCharCode(...new TextEncoder().encode(text));

/** Answers with a good response; everything else is an ApiError, except an abort. */
export async function request(path, { body, headers = {}, signal } = {}) {
  const init = { headers: { ...headers }, signal, cache: "no-store" };
  if (ownKey) init.headers.Authorization = `Bearer ${asHeader(ownKey)}`;
  if (body !== undefined) {
    init.method = "POST";
    init.headers["Content-Type"] = "application/json";
    init.body = JSON.stringify(body);
  }
  let response;
  try {
    response = await fetch(new URL(path, document.baseURI), init);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server cannot be reached. Does it run, and is the network up?");
  }
  if (response.ok) return response;
  throw await toError(response);
}

async function toError(response) {
  const told = {
    status: response.status,
    requestId: response.headers.get("x-request-id"),
    retryAfterS: Number(response.headers.get("retry-after")) || null,
  };
  let message = `The server answered ${response.status} ${response.statusText}`.trim() + ".";
  try {
    const { error } = await response.json();
    if (error && error.message) message = error.message;
    Object.assign(told, { code: error?.code ?? null, param: error?.param ?? null });
  } catch {
    // not ours: a proxy's page
  }
  return new ApiError(message, told);
}

/** The data of each server-sent event, up to [DONE]. A stream that ends before it is an error: the answer is cut. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const requestId = response.headers.get("x-request-id");
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await read(reader, requestId);
      if (done) throw new ApiError("The connection ended before the answer was complete.", { requestId });
      rest += value;
      const frames = rest.split("\n\n");
      rest = frames.pop();
      for (const frame of frames) {
        if (!frame.startsWith("data: ")) continue; // a comment that keeps proxies awake
        const data = frame.slice(6);
        if (data === "[DONE]") return;
        const event = JSON.parse(data);
        if (event.error) throw new ApiError(event.error.message, { code: event.error.code, requestId });
        yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

async function read(reader, requestId) {
  try {
    return await reader.read();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The connection broke before the answer was complete.", { requestId });
  }
}
