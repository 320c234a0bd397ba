// A chat session of Google's Gen AI SDK whose first answer is held: what it heard, and what it remembers.

import { GoogleGenAI } from '@google/genai';
import { tell } from './tools.mjs';

async function streamed(chat, message) {
  const pieces = [];
  for await (const chunk of await chat.sendMessageStream({ message })) pieces.push(chunk.text);
  return pieces;
}

await tell((base) => ({
  'held-chat': async (model) => {
    const headers = { 'x-session-id': 'held-node' };
    const ai = new GoogleGenAI({ apiKey: 'any', httpOptions: { baseUrl: base, headers } });
    const chat = ai.chats.create({ model });
    const pieces = await streamed(chat, 'remind me soon');
    const remembered = chat.getHistory(true).map(({ role, parts }) => [role, parts.map((part) => part.text)]);
    return { pieces, remembered, then: (await streamed(chat, 'and now?')).join('') };
  },
}));
