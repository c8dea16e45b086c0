// The helpers of OpenAI's client for Node, its errors, and the methods for what is not served; prints one JSON object.
// MUSTER_PART says which: "parse" (answers are JSON), "tools" (one call, then text), "errors".
import OpenAI from "openai";
import { zodFunction, zodResponseFormat, zodResponsesFunction, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

const settings = { baseURL: process.env.MUSTER_URL, apiKey: process.env.MUSTER_KEY, maxRetries: 0 };
const client = new OpenAI(settings);
const model = process.env.MUSTER_MODEL;
const messages = [{ role: "user", content: "hi" }];
const Place = z.object({ name: z.string(), people: z.number().int() });
const City = z.object({ city: z.string() });

async function failed(call) {
  try {
    await call();
  } catch (error) {
    const { name } = error.constructor;
    return { name, status: error.status ?? null, type: error.type ?? null, code: error.code ?? null, message: error.message };
  }
  throw new Error("it should have failed");
}

async function parse() {
  const response_format = zodResponseFormat(Place, "place");
  const text = { format: zodTextFormat(Place, "place") };
  const chat = await client.chat.completions.parse({ model, messages, response_format });
  const streamed = await client.chat.completions.stream({ model, messages, response_format }).finalChatCompletion();
  const response = await client.responses.parse({ model, input: "hi", text });
  const events = client.responses.stream({ model, input: "hi", text });
  const final = await events.finalResponse();
  const { data, response: raw, request_id } = await client.chat.completions.create({ model, messages }).withResponse();
  const bare = await client.models.list().asResponse();
  return {
    chat: chat.choices[0].message.parsed,
    chat_streamed: streamed.choices[0].message.parsed,
    response: response.output_parsed,
    response_streamed: final.output_parsed,
    raw_status: raw.status,
    request_ids_agree: request_id === raw.headers.get("x-request-id") && data._request_id === request_id,
    bare: (await bare.json()).object,
  };
}

async function tools() {
  const asked = [];
  const run = (stream) =>
    client.chat.completions.runTools({
      model,
      messages,
      stream,
      tools: [
        zodFunction({
          name: "weather",
          parameters: City,
          function: ({ city }) => {
            asked.push(city);
            return `rain in ${city}`;
          },
        }),
      ],
    });
  const whole = await run(false).finalContent();
  const streamed = await run(true).finalContent();
  const parsed = await client.chat.completions.parse({ model, messages, tools: [zodFunction({ name: "weather", parameters: City })] });
  const response = await client.responses.parse({
    model,
    input: "hi",
    tools: [zodResponsesFunction({ name: "weather", parameters: City })],
  });
  return {
    asked,
    whole,
    streamed,
    parsed: parsed.choices[0].message.tool_calls.map((call) => call.function.parsed_arguments),
    response: response.output.filter((item) => item.type === "function_call").map((item) => item.parsed_arguments),
  };
}

async function errors() {
  const file = new File(["{}"], "x.jsonl");
  const unserved = {
    "chat.completions.retrieve": () => client.chat.completions.retrieve("x"),
    "chat.completions.messages": () => client.chat.completions.messages.list("x"),
    "chat.completions.list": () => client.chat.completions.list(),
    "models.delete": () => client.models.delete("tiny"),
    "responses.compact": () => client.responses.compact({ model, input: "hi" }),
    "images.generate": () => client.images.generate({ model, prompt: "x" }),
    "audio.speech": () => client.audio.speech.create({ model, voice: "alloy", input: "x" }),
    "moderations.create": () => client.moderations.create({ input: "x" }),
    "files.list": () => client.files.list(),
    "files.create": () => client.files.create({ file, purpose: "batch" }),
    "batches.list": () => client.batches.list(),
    "fineTuning.jobs.list": () => client.fineTuning.jobs.list(),
    "vectorStores.list": () => client.vectorStores.list(),
    "conversations.create": () => client.conversations.create(),
    "containers.list": () => client.containers.list(),
    "evals.list": () => client.evals.list(),
    "videos.list": () => client.videos.list(),
  };
  const found = {};
  for (const [name, call] of Object.entries(unserved)) found[name] = await failed(call);
  return {
    unserved: found,
    wrong: await failed(() => client.chat.completions.create({ model, messages, temperature: 3 })),
    key: await failed(() => new OpenAI({ ...settings, apiKey: "wrong" }).models.list()),
    cancel: await failed(() => client.responses.cancel("resp_x")),
    gone: await failed(() => new OpenAI({ ...settings, baseURL: "http://127.0.0.1:1/v1" }).models.list()),
    late: await failed(() => client.completions.create({ model, prompt: "late" }, { timeout: 200 })),
  };
}

console.log(JSON.stringify(await { parse, tools, errors }[process.env.MUSTER_PART]()));
