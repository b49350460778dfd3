// Use `/v1/responses` and `/v1/conversations` with OpenAI's JavaScript library; print what it returned as JSON.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "any", maxRetries: 0 });
const model = "gpt-4o";
const result = {};

const first = await client.responses.create({ model, input: "I am Ada." });
const second = await client.responses.create({ model, input: "Who am I?", previous_response_id: first.id });
result.texts = [first.output_text, second.output_text];
result.stored = (await client.responses.retrieve(second.id)).output_text;
result.inputs = [];
for await (const item of client.responses.inputItems.list(second.id)) result.inputs.push(item.content);

const stream = client.responses.stream({ model, input: "Count.", previous_response_id: second.id });
result.events = [];
for await (const event of stream) result.events.push([event.sequence_number, event.type]);
result.streamed = (await stream.finalResponse()).output_text;

const format = {
  type: "json_schema",
  name: "city",
  strict: true,
  schema: { type: "object", properties: { city: { type: "string" } }, required: ["city"], additionalProperties: false },
};
result.parsed = (await client.responses.parse({ model, input: "Where?", text: { format } })).output_parsed;

const started = await client.responses.create({ model, input: "In the background.", background: true });
const resumed = client.responses.stream({ response_id: started.id });
result.background = (await resumed.finalResponse()).output_text;
result.rest = [];
for await (const event of await client.responses.retrieve(started.id, { stream: true, starting_after: 2 })) {
  result.rest.push(event.sequence_number);
}

const conversation = await client.conversations.create({ items: [{ role: "user", content: "One." }] });
for (let n = 0; n < 3; n++) await client.responses.create({ model, input: `${n}`, conversation: conversation.id });
result.items = [];
for await (const item of client.conversations.items.list(conversation.id, { limit: 2, order: "asc" })) {
  result.items.push(item.content[0].text);
}
try {
  await client.responses.create({ model, input: "Hi", previous_response_id: "resp_unknown" });
} catch (error) {
  result.error = [error.status, error.code];
}
console.log(JSON.stringify(result));
