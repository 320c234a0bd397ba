// Plots as SVG at their real width: sparklines and time series.
import {fill, h, s} from "./dom.js"
import {legend, legendEntry} from "./parts.js"
import {NONE, clock, moment, num} from "./text.js"

const HEIGHT = 208
const LEFT = 42
const RIGHT = 8
const TOP = 10
const BOTTOM = 24

const points = all => all.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L")

export function sparkline(values, cls) {
	const known = values.map(value => value ?? 0)
	const top = Math.max(...known, 1e-9)
	const line = points(known.map((value, at) => [(at / Math.max(1, known.length - 1)) * 84, 22 - (value / top) * 20]))
	return s("svg.spark", {viewBox: "0 0 84 24", class: cls, "aria-hidden": "true", preserveAspectRatio: "none"}, known.length > 1 && [s("path.area", {d: `M${line}L84 24L0 24Z`}), s("path.line", {d: `M${line}`})])
}

function ceiling(value) {
	const size = 10 ** Math.floor(Math.log10(value))
	return ([1.2, 1.6, 2, 2.4, 3.2, 4, 4.8, 6, 8].find(step => step * size >= value) ?? 12) * size
}

/** A time series with axis, values under the pointer, and `zoom(from, to)` after a drag. @param {any} options */
export function plot({test, label, unit, stacked, zoom}) {
	const svg = s(`svg.plot@${test}`, {role: "img", label, height: HEIGHT, onpointerleave: leave, onpointerdown: begin, onpointermove: event => times.length && show(at(event)), onpointerup: finish})
	const tip = h("div.tip.float", {hidden: true})
	const cross = s("line.cross", {y1: TOP, y2: HEIGHT - BOTTOM})
	const chosen = s("rect.chosen", {y: TOP, height: HEIGHT - BOTTOM - TOP})
	const key = h("div")
	let times = []
	let series = []
	let width = 0
	let max = 1
	let start = null
	const last = () => Math.max(1, times.length - 1)
	const x = at => LEFT + (at / last()) * (width - LEFT - RIGHT)
	const y = value => TOP + (1 - value / max) * (HEIGHT - TOP - BOTTOM)
	const at = event => Math.max(0, Math.min(last(), Math.round(((event.clientX - svg.getBoundingClientRect().left - LEFT) / (width - LEFT - RIGHT)) * last())))
	const long = () => times.at(-1) - times[0]

	function layers() {
		let base = times.map(() => 0)
		return series.map(({values, cls}) => {
			const tops = base.map((value, n) => value + (values[n] ?? 0))
			const outline = [...tops.map((value, n) => [x(n), y(value)]), ...base.map((value, n) => [x(n), y(value)]).reverse()]
			base = tops
			return s("path.solid", {class: cls, d: `M${points(outline)}Z`})
		})
	}

	// Lines, interrupted where a value is unknown.
	const lines = () => series.map(({values, cls, area, dash}) => {
		const runs = [[]]
		for (const [n, value] of values.entries()) {
			if (value == null) runs.push([])
			else runs.at(-1).push([x(n), y(value)])
		}
		return s("g", {class: cls}, runs.filter(run => run.length).map(run => [
			area && s("path.area", {d: `M${points([...run, [run.at(-1)[0], y(0)], [run[0][0], y(0)]])}Z`}),
			s("path.line", {d: `M${points(run)}h0`, "stroke-dasharray": dash && "4 3"})]))
	})

	function draw() {
		width = svg.clientWidth
		if (!width || !times.length) return
		const sums = stacked ? times.map((_, n) => series.reduce((sum, row) => sum + (row.values[n] ?? 0), 0)) : series.flatMap(row => row.values)
		max = ceiling(Math.max(...sums, 1e-3))
		const ticks = [0, 0.25, 0.5, 0.75, 1]
		const marks = ticks.filter(part => width > 420 || part % 0.5 === 0)
		const anchor = part => ({0: "start", 1: "end"}[part] ?? "middle")
		fill(svg, ticks.map(part => s("line", {x1: LEFT, x2: width - RIGHT, y1: y(part * max), y2: y(part * max)})), chosen, stacked ? layers() : lines(),
			ticks.map(part => s("text", {x: LEFT - 7, y: y(part * max) + 4, "text-anchor": "end"}, num(part * max, max < 0.8 ? 2 : max < 8 ? 1 : 0))),
			marks.map(part => s("text", {x: x(part * last()), y: HEIGHT - 5, "text-anchor": anchor(part)}, moment(times[Math.round(part * last())], long()))), cross)
	}

	function show(point) {
		const line = row => h("div.line", legendEntry(row), h("span.end", row.values[point] == null ? NONE : num(row.values[point], max < 10 ? 2 : 0), h("span.unit", unit)))
		fill(tip, h("b", long() > 864e5 ? moment(times[point], 1e8) : clock(times[point])), series.map(line))
		const right = x(point) > width * 0.6
		Object.assign(tip.style, {left: right ? "auto" : `${x(point) + 16}px`, right: right ? `${width - x(point) + 16}px` : "auto"})
		cross.setAttribute("transform", `translate(${x(point)})`)
		if (start != null) for (const [name, value] of [["x", x(Math.min(start, point))], ["width", Math.abs(x(point) - x(start))]]) chosen.setAttribute(name, value)
		hover(true)
	}

	function hover(over) {
		tip.hidden = !over
		svg.classList.toggle("hovered", over)
		svg.classList.toggle("drag", over && start != null)
	}

	function leave() {
		start = null
		hover(false)
	}

	function begin(event) {
		if (!event.button) start = at(event)
	}

	function finish(event) {
		const ends = [start, at(event)].sort((a, b) => a - b)
		if (start != null && ends[1] - ends[0] > 1) zoom(...ends.map(end => times[end]))
		leave()
	}
	new ResizeObserver(draw).observe(svg)

	return {
		node: h("div.plotwrap", svg, tip),
		key,
		set(newTimes, newSeries) {
			times = newTimes
			series = newSeries
			fill(key, legend(series))
			draw()
		},
	}
}
