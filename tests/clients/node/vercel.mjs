// The Vercel AI SDK through each of its providers: it runs the tool loop itself.

import { createAnthropic } from '@ai-sdk/anthropic';
import { createGoogleGenerativeAI } from '@ai-sdk/google';
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateText, isStepCount, streamText, tool } from 'ai';
import { z } from 'zod';
import { ASK, DESCRIPTION, HELLO, TWO, lookUp, tell } from './tools.mjs';

const turns = {
  whole: async (options) => {
    const result = await generateText(options);
    return { text: result.text, finish: result.finishReason };
  },
  stream: async (options) => {
    let failure = null;
    const result = streamText({ ...options, onError: ({ error }) => (failure = error) });
    try {
      const text = await result.text;
      if (failure) throw failure;
      return { text, finish: await result.finishReason };
    } catch (error) {
      throw failure ?? error;
    }
  },
};

async function loop(turn, model, prompt) {
  const calls = [];
  const execute = async (input) => {
    calls.push(input);
    return lookUp(input);
  };
  const tools = {
    look_up: tool({ description: DESCRIPTION, inputSchema: z.object({ city: z.string() }), execute }),
  };
  const said = await turn({ model, prompt, tools, stopWhen: isStepCount(4), maxRetries: 0 });
  return { calls, ...said };
}

await tell((base) => {
  const openai = createOpenAI({ baseURL: `${base}/v1`, apiKey: 'any' });
  const anthropic = createAnthropic({ baseURL: `${base}/v1`, apiKey: 'any' });
  const google = createGoogleGenerativeAI({ baseURL: `${base}/v1beta`, apiKey: 'any' });
  const compatible = createOpenAICompatible({ name: 'gateway', baseURL: `${base}/v1`, apiKey: 'any' });
  const providers = {
    chat: (model) => openai.chat(model),
    responses: (model) => openai.responses(model),
    anthropic: (model) => anthropic(model),
    google: (model) => google(model),
    compatible: (model) => compatible(model),
  };
  const scenarios = {};
  for (const [name, of] of Object.entries(providers)) {
    for (const [mode, turn] of Object.entries(turns)) {
      scenarios[`${name}-plain-${mode}`] = (model) =>
        turn({ model: of(model), prompt: HELLO, maxRetries: 0 });
      scenarios[`${name}-loop-${mode}`] = (model) => loop(turn, of(model), ASK);
      scenarios[`${name}-two-${mode}`] = (model) => loop(turn, of(model), TWO);
    }
  }
  return scenarios;
});
