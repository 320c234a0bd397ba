// A virtual list: only the rows in view are in the DOM, however many there are.
import {h} from "./dom.js"

const MARGIN = 6

/** `key` names an item, `row` draws it, `end` is called near the end of the list. @param {any} options */
export function virtualList({key, row, height, end, role}) {
	const inner = h("div.rows")
	const node = h("div.vlist", {tabindex: 0, role, onscroll: () => draw()}, inner)
	const list = {node, items: [], set, draw, reveal}
	let shown = new Map()

	// Rows added above leave what is in view where it is.
	function set(items) {
		const size = height()
		const top = node.scrollTop
		const first = list.items[Math.floor(top / size)]
		list.items = items
		inner.style.height = `${items.length * size}px`
		const at = top > size && first ? items.findIndex(item => key(item) === key(first)) : -1
		if (at >= 0) node.scrollTop = at * size + (top % size)
		draw()
	}

	// Rows whose item is the same object stay as they are, unless all are wanted.
	function draw(all = false) {
		const size = height()
		const from = Math.max(0, Math.floor(node.scrollTop / size) - MARGIN)
		const items = list.items.slice(from, Math.ceil((node.scrollTop + node.clientHeight) / size) + MARGIN)
		const next = new Map()
		for (const [n, item] of items.entries()) {
			const old = shown.get(key(item))
			const line = old?.item === item && !all ? old.line : row(item)
			line.style.transform = `translateY(${(from + n) * size}px)`
			if (line.role === "row") line.ariaRowIndex = from + n + 1
			if (!old) inner.append(line)
			else if (old.line !== line) old.line.replaceWith(line)
			next.set(key(item), {line, item})
		}
		for (const [name, {line}] of shown) if (!next.has(name)) line.remove()
		shown = next
		if (all) inner.style.height = `${list.items.length * size}px`
		if (from + items.length >= list.items.length - 10) end?.()
	}

	function reveal(at) {
		const size = height()
		const {scrollTop, clientHeight} = node
		if (at * size < scrollTop) node.scrollTop = at * size
		else if ((at + 2) * size > scrollTop + clientHeight) node.scrollTop = (at + 2) * size - clientHeight
		draw()
	}
	new ResizeObserver(() => draw(true)).observe(node)
	return list
}
