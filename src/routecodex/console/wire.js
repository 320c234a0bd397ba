// The four protocols: requests to build, streamed answers to read.

const inline = one => `data:${one.type};base64,${one.data}`
const stream = {stream: true}

// Messages with their parts: images, then text.
const parts = ({images = [], text}, image, words) => [...images.map(image), words(text)]
const turns = (messages, image, words) => messages.map(one => ({role: one.role, content: parts(one, image, words(one.role))}))

export const WIRES = {
	messages: {
		name: "Anthropic Messages",
		path: () => "/v1/messages",
		body: (model, messages) => ({model, max_tokens: 4096, ...stream, messages: turns(messages, ({type, data}) => ({type: "image", source: {type: "base64", media_type: type, data}}), () => text => ({type: "text", text}))}),
	},
	responses: {
		name: "OpenAI Responses",
		path: () => "/v1/responses",
		body: (model, messages) => ({model, ...stream, input: turns(messages, image => ({type: "input_image", image_url: inline(image)}), role => text => ({type: role === "user" ? "input_text" : "output_text", text}))}),
	},
	chat: {
		name: "OpenAI Chat",
		path: () => "/v1/chat/completions",
		body: (model, messages) => ({model, ...stream, stream_options: {include_usage: true}, messages: turns(messages, image => ({type: "image_url", image_url: {url: inline(image)}}), () => text => ({type: "text", text}))}),
	},
	gemini: {
		name: "Gemini",
		path: model => `/v1beta/models/${model}:streamGenerateContent?alt=sse`,
		body: (_, messages) => ({contents: messages.map(one => ({role: one.role === "user" ? "user" : "model", parts: parts(one, ({type, data}) => ({inlineData: {mimeType: type, data}}), text => ({text}))}))}),
	},
}

// The text, the tool calls and the error in an event of any protocol.
export function pieces({type, delta, item, content_block: block, choices, candidates, response, error, message}) {
	const chat = choices?.[0]?.delta
	const parts = candidates?.[0]?.content?.parts ?? []
	const calls = [block?.type === "tool_use" && block, type === "response.output_item.added" && item.type === "function_call" && item, ...(chat?.tool_calls ?? []).map(one => one.function), ...parts.map(part => part.functionCall && {...part.functionCall, arguments: JSON.stringify(part.functionCall.args)})]
	return {
		text: [delta?.text, type === "response.output_text.delta" && delta, chat?.content, ...parts.map(part => !part.thought && part.text)].filter(Boolean).join(""),
		tool: [...calls.flatMap(one => one && [one.name, one.name && " ", one.arguments]), delta?.partial_json, type === "response.function_call_arguments.delta" && delta].filter(Boolean).join(""),
		error: (error ?? response?.error)?.message ?? (type === "error" && message),
	}
}

// Reads a stream of events: every frame as it came, and its data.
export async function readEvents(body, take) {
	let rest = ""
	for await (const text of body.pipeThrough(new TextDecoderStream())) {
		const frames = (rest + text).split(/\r?\n\r?\n/)
		rest = frames.pop()
		for (const frame of frames) take(frame, parsed(frame))
	}
	if (rest.trim()) take(rest, parsed(rest))
}

function parsed(frame) {
	const data = frame.split(/\r?\n/).filter(line => line.startsWith("data:")).map(line => line.slice(5)).join("\n")
	try {
		return JSON.parse(data || frame)
	} catch {
		return {}
	}
}

export const PROTOCOLS = Object.entries(WIRES).map(([key, wire]) => [key, wire.name])
