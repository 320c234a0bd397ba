// A virtual list: only the rows in view are in the DOM, however many there are.
import {h} from "./dom.js"

const MARGIN = 6

export class VirtualList {
	items = []
	#shown = new Map()

	/** @param {{key: (item: any) => string, row: (item: any) => any, height: () => number, end?: () => void, role?: string}} options */
	constructor(options) {
		this.options = options
		this.inner = h("div.rows")
		this.node = h("div.vlist", {tabindex: 0, role: options.role, onscroll: () => this.draw()}, this.inner)
		new ResizeObserver(() => this.draw(true)).observe(this.node)
	}

	// Rows added above leave what is in view where it is.
	set(items) {
		const size = this.options.height()
		const top = this.node.scrollTop
		const first = this.items[Math.floor(top / size)]
		this.items = items
		this.inner.style.height = `${items.length * size}px`
		const at = top > size && first ? items.findIndex(item => this.options.key(item) === this.options.key(first)) : -1
		if (at >= 0) this.node.scrollTop = at * size + (top % size)
		this.draw()
	}

	// Rows whose item is the same object stay as they are, unless all are wanted.
	draw(all = false) {
		const {key, row, height, end} = this.options
		const size = height()
		const {scrollTop, clientHeight} = this.node
		const from = Math.max(0, Math.floor(scrollTop / size) - MARGIN)
		const to = Math.min(this.items.length, Math.ceil((scrollTop + clientHeight) / size) + MARGIN)
		const next = new Map()
		for (let at = from; at < to; at++) {
			const item = this.items[at]
			const old = this.#shown.get(key(item))
			const node = old?.item === item && !all ? old.node : row(item)
			node.style.transform = `translateY(${at * size}px)`
			if (node.role === "row") node.ariaRowIndex = at + 1
			if (!old) this.inner.append(node)
			else if (old.node !== node) old.node.replaceWith(node)
			next.set(key(item), {node, item})
		}
		for (const [name, {node}] of this.#shown) if (!next.has(name)) node.remove()
		this.#shown = next
		if (all) this.inner.style.height = `${this.items.length * size}px`
		if (to >= this.items.length - 10) end?.()
	}

	reveal(at) {
		const size = this.options.height()
		const {scrollTop, clientHeight} = this.node
		if (at * size < scrollTop) this.node.scrollTop = at * size
		else if ((at + 2) * size > scrollTop + clientHeight) this.node.scrollTop = (at + 2) * size - clientHeight
		this.draw()
	}
}
