// The four protocols as the playground speaks them: requests to build, streamed answers to read.


const image = one => `data:${one.type};base64,${one.data}`
const several = (parts, text) => (parts.length > 1 ? parts : text)

export const WIRES = {
	messages: {
		path: () => "/v1/messages",
		body: (model, messages, tools) => ({model, max_tokens: 4096, stream: true, ...(tools && {tools}), messages: messages.map(({role, text, images = []}) => ({role, content: several([...images.map(one => ({type: "image", source: {type: "base64", media_type: one.type, data: one.data}})), {type: "text", text}], text)}))}),
		read: event => ({text: event.delta?.text, tool: event.content_block?.type === "tool_use" ? `${event.content_block.name} ` : event.delta?.partial_json, error: event.type === "error" ? event.error?.message : undefined}),
	},
	responses: {
		path: () => "/v1/responses",
		body: (model, messages, tools) => ({model, stream: true, ...(tools && {tools}), input: messages.map(({role, text, images = []}) => ({role, content: [...images.map(one => ({type: "input_image", image_url: image(one)})), {type: role === "user" ? "input_text" : "output_text", text}]}))}),
		read: event => ({text: event.type === "response.output_text.delta" ? event.delta : undefined, tool: event.type === "response.output_item.added" && event.item?.type === "function_call" ? `${event.item.name} ` : event.type === "response.function_call_arguments.delta" ? event.delta : undefined, error: event.type === "error" ? event.message ?? event.error?.message : event.response?.error?.message}),
	},
	chat: {
		path: () => "/v1/chat/completions",
		body: (model, messages, tools) => ({model, stream: true, stream_options: {include_usage: true}, ...(tools && {tools}), messages: messages.map(({role, text, images = []}) => ({role, content: several([...images.map(one => ({type: "image_url", image_url: {url: image(one)}})), {type: "text", text}], text)}))}),
		read(event) {
			const delta = event.choices?.[0]?.delta ?? {}
			return {text: delta.content, tool: delta.tool_calls?.map(call => (call.function?.name ? `${call.function.name} ` : "") + (call.function?.arguments ?? "")).join(""), error: event.error?.message}
		},
	},
	gemini: {
		path: model => `/v1beta/models/${model}:streamGenerateContent?alt=sse`,
		body: (_, messages, tools) => ({...(tools && {tools}), contents: messages.map(({role, text, images = []}) => ({role: role === "user" ? "user" : "model", parts: [...images.map(one => ({inlineData: {mimeType: one.type, data: one.data}})), {text}]}))}),
		read(event) {
			const parts = event.candidates?.[0]?.content?.parts ?? []
			const calls = parts.filter(part => part.functionCall).map(part => `${part.functionCall.name} ${JSON.stringify(part.functionCall.args ?? {})}`)
			return {text: parts.filter(part => !part.thought).map(part => part.text ?? "").join(""), tool: calls.join("\n"), error: event.error?.message}
		},
	},
}

// Reads a stream of events: every frame as it came, then its data.
export async function readEvents(body, take) {
	const reader = body.pipeThrough((new TextDecoderStream())).getReader()
	let rest = ""
	for (let got = await reader.read(); !got.done; got = await reader.read()) {
		const frames = (rest + got.value).split(/\r?\n\r?\n/)
		rest = frames.pop() ?? ""
		for (const frame of frames) take(frame, parsed(frame))
	}
	if (rest.trim()) take(rest, parsed(rest))
}

function parsed(frame) {
	const data = frame.split(/\r?\n/).filter(line => line.startsWith("data:")).map(line => line.slice(5).trimStart()).join("\n")
	try {
		return JSON.parse(data || frame)
	} catch {
		return null
	}
}
