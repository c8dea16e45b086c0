// OpenAI's client for Node over every endpoint that it has methods for; prints what it got as one JSON object.
// MUSTER_URL is the base URL, MUSTER_MODEL the model, MUSTER_TOOLS=1 says that answers are tool calls.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.env.MUSTER_URL, apiKey: process.env.MUSTER_KEY, maxRetries: 0 });
const model = process.env.MUSTER_MODEL;
const messages = [{ role: "user", content: "hi" }];
const parameters = { type: "object", properties: { city: { type: "string" } } };

async function collected(stream) {
  const events = [];
  for await (const event of stream) events.push(event);
  return events;
}

async function failed(promise) {
  try {
    await promise;
  } catch (error) {
    return { name: error.constructor.name, status: error.status, code: error.code, param: error.param };
  }
  throw new Error("it should have failed");
}

async function plain() {
  const list = await collected(client.models.list());
  const chat = await client.chat.completions.create({ model, messages, logprobs: true, top_logprobs: 2, n: 2 });
  const chunks = await collected(
    await client.chat.completions.create({ model, messages, stream: true, stream_options: { include_usage: true } }),
  );
  const helper = client.chat.completions.stream({ model, messages });
  const completion = await client.completions.create({ model, prompt: "hi", max_tokens: 50 });
  const texts = await collected(await client.completions.create({ model, prompt: "hi", max_tokens: 50, stream: true }));
  const first = await client.responses.create({ model, input: "hi" });
  const second = await client.responses.create({ model, input: "more", previous_response_id: first.id });
  const events = await collected(await client.responses.create({ model, input: "hi", stream: true }));
  const items = await collected(client.responses.inputItems.list(second.id));
  const again = await client.responses.retrieve(second.id);
  const counted = await client.responses.inputTokens.count({ model, input: "hi" });
  await client.responses.delete(second.id);
  const packed = await client.embeddings.create({ model, input: ["hi", "hello"], dimensions: 3 });
  const listed = await client.embeddings.create({ model, input: ["hi", "hello"], dimensions: 3, encoding_format: "float" });
  return {
    models: list.map((card) => card.id),
    model: (await client.models.retrieve(list[1].id)).id,
    chat: chat.choices.map((choice) => choice.message.content),
    logprobs: chat.choices[0].logprobs.content[0].top_logprobs.length,
    chat_streamed: chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join(""),
    chat_usage: chunks.at(-1).usage,
    chat_helper: await helper.finalContent(),
    completion: completion.choices[0].text,
    completion_streamed: texts.map((chunk) => chunk.choices[0].text).join(""),
    response: first.output_text,
    response_again: again.output_text === second.output_text,
    response_streamed: events.filter((e) => e.type === "response.output_text.delta").map((e) => e.delta).join(""),
    response_end: events.at(-1).type,
    response_items: items.length,
    response_tokens: counted.input_tokens,
    embeddings: packed.data.map((entry) => entry.embedding),
    embeddings_listed: listed.data.map((entry) => entry.embedding),
    errors: [
      await failed(client.chat.completions.create({ model, messages, temperature: 3 })),
      await failed(client.chat.completions.create({ model: "gpt-9", messages })),
      await failed(client.responses.retrieve(second.id)),
      await failed(new OpenAI({ baseURL: process.env.MUSTER_URL, apiKey: "wrong" }).models.list()),
    ],
  };
}

async function tools() {
  const chatTools = [{ type: "function", function: { name: "weather", parameters } }];
  const responseTools = [{ type: "function", name: "weather", parameters, strict: false }];
  const chat = await client.chat.completions.create({ model, messages, tools: chatTools });
  const helper = client.chat.completions.stream({ model, messages, tools: chatTools });
  const streamed = await helper.finalMessage();
  const response = await client.responses.create({ model, input: "hi", tools: responseTools });
  const final = await client.responses.stream({ model, input: "hi", tools: responseTools }).finalResponse();
  const calls = (output) => output.filter((item) => item.type === "function_call");
  return {
    reason: chat.choices[0].finish_reason,
    chat: chat.choices[0].message.tool_calls.map((call) => call.function),
    chat_streamed: streamed.tool_calls.map(({ function: { name, arguments: text } }) => ({ name, arguments: text })),
    response: calls(response.output).map(({ name, arguments: text }) => ({ name, arguments: text })),
    response_streamed: calls(final.output).map(({ name, arguments: text }) => ({ name, arguments: text })),
  };
}

console.log(JSON.stringify(process.env.MUSTER_TOOLS ? await tools() : await plain()));
