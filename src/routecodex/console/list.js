// A virtual list: only the rows in view are in the DOM, however many there are.
import {h} from "./dom.js"

const MARGIN = 6

export class VirtualList {
	items = []
	#shown = new Map()

	constructor(options) {
		this.options = options
		this.inner = h("div.rows")
		this.node = h("div.vlist", {tabindex: 0, role: options.role}, this.inner)
		this.node.addEventListener("scroll", () => this.draw(), {passive: true})
		this.observer = new ResizeObserver(() => this.draw(true))
		this.observer.observe(this.node)
	}

	close() {
		this.observer.disconnect()
	}

	// Sets the rows; rows added above leave what is in view where it is.
	set(items) {
		const height = this.options.height()
		const top = this.node.scrollTop
		const first = this.items[Math.floor(top / height)]
		this.items = items
		this.inner.style.height = `${items.length * height}px`
		if (top > height && first) {
			const at = items.findIndex(item => this.options.key(item) === this.options.key(first))
			if (at >= 0) this.node.scrollTop = at * height + (top % height)
		}
		this.draw()
	}

	// Draws the rows in view; those whose item is the same object stay as they are.
	draw(all = false) {
		const {key, row, height, end} = this.options
		const size = height()
		const from = Math.max(0, Math.floor(this.node.scrollTop / size) - MARGIN)
		const to = Math.min(this.items.length, Math.ceil((this.node.scrollTop + this.node.clientHeight) / size) + MARGIN)
		const next = new Map()
		for (let at = from; at < to; at++) {
			const item = this.items[at]
			const old = this.#shown.get(key(item))
			const node = old && old.item === item && !all ? old.node : row(item, at)
			node.style.transform = `translateY(${at * size}px)`
			if (node.role === "row") node.ariaRowIndex = at + 1
			if (old && old.node !== node) old.node.replaceWith(node)
			else if (!old) this.inner.append(node)
			next.set(key(item), {node, item})
		}
		for (const [name, {node}] of this.#shown) if (!next.has(name)) node.remove()
		this.#shown = next
		if (all) this.inner.style.height = `${this.items.length * size}px`
		if (to >= this.items.length - 10) end?.()
	}

	// Draws one item anew.
	replace(name, item) {
		const at = this.items.findIndex(one => this.options.key(one) === name)
		if (at >= 0) this.items[at] = item
		this.draw()
	}

	// Scrolls a row into view.
	reveal(at) {
		const size = this.options.height()
		const {scrollTop, clientHeight} = this.node
		if (at * size < scrollTop) this.node.scrollTop = at * size
		else if ((at + 2) * size > scrollTop + clientHeight) this.node.scrollTop = (at + 2) * size - clientHeight
		this.draw()
	}
}
