// How OpenAI's and Anthropic's SDKs raise a refused key: the class, the status, the code, and the attempts.

import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';

const [url, ...keys] = process.argv.slice(2);

async function raised(send) {
  let attempts = 0;
  const counting = (input, init) => {
    attempts += 1;
    return fetch(input, init);
  };
  try {
    await send(counting);
    return { attempts };
  } catch (error) {
    return { attempts, name: error.constructor.name, status: error.status, code: error.code ?? null };
  }
}

const messages = [{ role: 'user', content: 'hello' }];
const sdks = {
  chat: (key) => (fetch) =>
    new OpenAI({ baseURL: `${url}/v1`, apiKey: key, fetch }).chat.completions.create({ model: 'auto', messages }),
  responses: (key) => (fetch) =>
    new OpenAI({ baseURL: `${url}/v1`, apiKey: key, fetch }).responses.create({ model: 'auto', input: 'hello' }),
  messages: (key) => (fetch) =>
    new Anthropic({ baseURL: url, apiKey: key, fetch }).messages.create({ model: 'auto', max_tokens: 9, messages }),
};

for (const key of keys) {
  for (const [sdk, send] of Object.entries(sdks)) {
    console.log(JSON.stringify({ key, sdk, ...(await raised(send(key))) }));
  }
}
