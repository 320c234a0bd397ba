// Anthropic's SDK: whole, streamed by hand, and through its `.stream()` helper.

import Anthropic from '@anthropic-ai/sdk';
import { ASK, DESCRIPTION, HELLO, PARAMETERS, TWO, lookUp, tell } from './tools.mjs';

const TOOL = { name: 'look_up', description: DESCRIPTION, input_schema: PARAMETERS };

const turns = {
  whole: async (client, body) => client.messages.create(body),
  stream: async (client, body) => {
    const content = [];
    let json = '';
    let stop = null;
    for await (const event of await client.messages.create({ ...body, stream: true })) {
      if (event.type === 'content_block_start') {
        content.push({ ...event.content_block });
        json = '';
      }
      const block = content.at(-1);
      if (event.delta?.type === 'text_delta') block.text += event.delta.text;
      if (event.delta?.type === 'input_json_delta') json += event.delta.partial_json;
      if (event.type === 'content_block_stop' && block.type === 'tool_use') block.input = JSON.parse(json);
      if (event.type === 'message_delta') stop = event.delta.stop_reason;
    }
    return { content, stop_reason: stop };
  },
  helper: async (client, body) => client.messages.stream(body).finalMessage(),
};

function textOf(message) {
  return message.content.map((block) => block.text ?? '').join('');
}

async function loop(client, turn, model, text) {
  const messages = [{ role: 'user', content: text }];
  const asked = await turn(client, { model, max_tokens: 1000, messages, tools: [TOOL] });
  const uses = asked.content.filter((block) => block.type === 'tool_use');
  messages.push({ role: 'assistant', content: asked.content });
  messages.push({
    role: 'user',
    content: uses.map((use) => ({ type: 'tool_result', tool_use_id: use.id, content: lookUp(use.input) })),
  });
  const done = await turn(client, { model, max_tokens: 1000, messages, tools: [TOOL] });
  return {
    calls: uses.map((use) => use.input),
    text: textOf(done),
    ends: [asked.stop_reason, done.stop_reason],
    usage: asked.usage?.output_tokens ?? null,
  };
}

await tell((base) => {
  const client = new Anthropic({ baseURL: base, apiKey: 'any', maxRetries: 0 });
  const scenarios = {};
  for (const [mode, turn] of Object.entries(turns)) {
    scenarios[`plain-${mode}`] = async (model) => {
      const messages = [{ role: 'user', content: HELLO }];
      return { text: textOf(await turn(client, { model, max_tokens: 1000, messages })) };
    };
    scenarios[`loop-${mode}`] = (model) => loop(client, turn, model, ASK);
    scenarios[`two-${mode}`] = (model) => loop(client, turn, model, TWO);
  }
  return scenarios;
});
