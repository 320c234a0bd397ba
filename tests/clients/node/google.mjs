// Google's Gen AI SDK: whole and streamed.

import { GoogleGenAI } from '@google/genai';
import { ASK, DESCRIPTION, HELLO, PARAMETERS, TWO, lookUp, tell } from './tools.mjs';

const TOOLS = [
  {
    functionDeclarations: [
      { name: 'look_up', description: DESCRIPTION, parametersJsonSchema: PARAMETERS },
    ],
  },
];

const turns = {
  whole: async (ai, body) => (await ai.models.generateContent(body)).candidates[0].content.parts,
  stream: async (ai, body) => {
    const parts = [];
    for await (const chunk of await ai.models.generateContentStream(body)) {
      parts.push(...(chunk.candidates[0].content?.parts ?? []));
    }
    return parts;
  },
};

function textOf(parts) {
  return parts.map((part) => part.text ?? '').join('');
}

async function loop(ai, turn, model, text) {
  const contents = [{ role: 'user', parts: [{ text }] }];
  const config = { tools: TOOLS };
  const asked = await turn(ai, { model, contents, config });
  const calls = asked.filter((part) => part.functionCall).map((part) => part.functionCall);
  contents.push({ role: 'model', parts: asked });
  contents.push({
    role: 'user',
    parts: calls.map(({ id, name, args }) => ({
      functionResponse: { id, name, response: { output: lookUp(args) } },
    })),
  });
  const done = await turn(ai, { model, contents, config });
  return { calls: calls.map((call) => call.args), text: textOf(done) };
}

await tell((base) => {
  const ai = new GoogleGenAI({ apiKey: 'any', httpOptions: { baseUrl: base } });
  const scenarios = {
    'count-tokens': async (model) => {
      const counted = await ai.models.countTokens({ model, contents: HELLO });
      return { text: typeof counted.totalTokens };
    },
    'list-models': async (model) => {
      const names = [];
      for await (const listed of await ai.models.list()) names.push(listed.name);
      return { text: names.includes(`models/${model}`) ? 'listed' : names.join(' ') };
    },
  };
  for (const [mode, turn] of Object.entries(turns)) {
    scenarios[`plain-${mode}`] = async (model) => ({ text: textOf(await turn(ai, { model, contents: HELLO })) });
    scenarios[`loop-${mode}`] = (model) => loop(ai, turn, model, ASK);
    scenarios[`two-${mode}`] = (model) => loop(ai, turn, model, TWO);
  }
  return scenarios;
});
