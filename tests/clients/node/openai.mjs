// OpenAI's SDK: chat completions and responses, each whole, streamed, and through its helpers.

import OpenAI from 'openai';
import { ASK, DESCRIPTION, HELLO, PARAMETERS, TWO, lookUp, tell } from './tools.mjs';

const CHAT_TOOL = {
  type: 'function',
  function: { name: 'look_up', description: DESCRIPTION, parameters: PARAMETERS },
};
const TOOL = {
  type: 'function',
  name: 'look_up',
  description: DESCRIPTION,
  parameters: PARAMETERS,
  strict: true,
};

const chatTurns = {
  whole: async (client, body) => (await client.chat.completions.create(body)).choices[0].message,
  stream: async (client, body) => {
    const message = { role: 'assistant', content: '', tool_calls: [] };
    for await (const chunk of await client.chat.completions.create({ ...body, stream: true })) {
      const delta = chunk.choices[0]?.delta ?? {};
      message.content += delta.content ?? '';
      for (const call of delta.tool_calls ?? []) {
        const known = (message.tool_calls[call.index] ??= { ...call, function: { name: '', arguments: '' } });
        known.function.name += call.function?.name ?? '';
        known.function.arguments += call.function?.arguments ?? '';
      }
    }
    return message.tool_calls.length ? message : { role: 'assistant', content: message.content };
  },
  helper: async (client, body) => client.chat.completions.stream(body).finalMessage(),
};

async function chatLoop(client, turn, model, text) {
  const messages = [{ role: 'user', content: text }];
  const asked = await turn(client, { model, messages, tools: [CHAT_TOOL] });
  const calls = asked.tool_calls.map((call) => JSON.parse(call.function.arguments));
  messages.push(asked);
  asked.tool_calls.forEach((call, index) =>
    messages.push({ role: 'tool', tool_call_id: call.id, content: lookUp(calls[index]) }),
  );
  const done = await turn(client, { model, messages, tools: [CHAT_TOOL] });
  return { calls, text: done.content };
}

async function chatRunner(client, model) {
  const seen = [];
  const run = (input) => {
    seen.push(input);
    return lookUp(input);
  };
  const runner = client.chat.completions.runTools({
    model,
    messages: [{ role: 'user', content: ASK }],
    stream: true,
    tools: [
      {
        type: 'function',
        function: {
          name: 'look_up',
          description: DESCRIPTION,
          parameters: PARAMETERS,
          parse: JSON.parse,
          function: run,
        },
      },
    ],
  });
  return { text: await runner.finalContent(), calls: seen };
}

const responseTurns = {
  whole: async (client, body) => client.responses.create(body),
  stream: async (client, body) => {
    let last;
    for await (const event of await client.responses.create({ ...body, stream: true })) last = event;
    return unlessFailed({ ...last.response, output_text: textOf(last.response) });
  },
  helper: async (client, body) => unlessFailed(await client.responses.stream(body).finalResponse()),
};

// The SDK hands out a failed response like any other: a program has to look at its status.
function unlessFailed(response) {
  if (response.status === 'failed') throw new Error(response.error.message);
  return response;
}

function textOf(response) {
  const parts = response.output.flatMap((item) => item.content ?? []);
  return parts.map((part) => part.text ?? '').join('');
}

async function responseLoop(client, turn, model, text) {
  const asked = await turn(client, { model, input: text, tools: [TOOL] });
  const items = asked.output.filter((item) => item.type === 'function_call');
  const calls = items.map((item) => JSON.parse(item.arguments));
  const input = items.map((item, index) => ({
    type: 'function_call_output',
    call_id: item.call_id,
    output: lookUp(calls[index]),
  }));
  const done = await turn(client, { model, input, tools: [TOOL], previous_response_id: asked.id });
  return { calls, text: done.output_text };
}

await tell((base) => {
  const client = new OpenAI({ baseURL: `${base}/v1`, apiKey: 'any', maxRetries: 0 });
  const scenarios = { 'chat-loop-runner': (model) => chatRunner(client, model) };
  for (const [mode, turn] of Object.entries(chatTurns)) {
    scenarios[`chat-plain-${mode}`] = async (model) => {
      const said = await turn(client, { model, messages: [{ role: 'user', content: HELLO }] });
      return { text: said.content };
    };
    scenarios[`chat-loop-${mode}`] = (model) => chatLoop(client, turn, model, ASK);
    scenarios[`chat-two-${mode}`] = (model) => chatLoop(client, turn, model, TWO);
  }
  for (const [mode, turn] of Object.entries(responseTurns)) {
    scenarios[`responses-plain-${mode}`] = async (model) => {
      const said = await turn(client, { model, input: HELLO });
      return { text: said.output_text };
    };
    scenarios[`responses-loop-${mode}`] = (model) => responseLoop(client, turn, model, ASK);
    scenarios[`responses-two-${mode}`] = (model) => responseLoop(client, turn, model, TWO);
  }
  return scenarios;
});
