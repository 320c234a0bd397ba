// The difference of two texts by lines.
import {CODE, h} from "./dom.js"

const SIGNS = {"": " ", add: "+", del: "−"}

// By the longest common subsequence; past a million cells only at both ends.
function diffLines(before, after) {
	const [a, b] = [before.split("\n"), after.split("\n")]
	let start = 0
	while (start < a.length && a[start] === b[start]) start++
	let end = 0
	while (end < Math.min(a.length, b.length) - start && a.at(-1 - end) === b.at(-1 - end)) end++
	const as = (kind, lines) => lines.map(line => [kind, line])
	const x = a.slice(start, a.length - end)
	const y = b.slice(start, b.length - end)
	return [...as("", a.slice(0, start)), ...(x.length * y.length > 1e6 ? [...as("del", x), ...as("add", y)] : changes(x, y)), ...as("", a.slice(a.length - end))]
}

function changes(x, y) {
	const long = Array.from({length: x.length + 1}, () => new Uint32Array(y.length + 1))
	for (let i = x.length - 1; i >= 0; i--) {
		for (let j = y.length - 1; j >= 0; j--) long[i][j] = x[i] === y[j] ? long[i + 1][j + 1] + 1 : Math.max(long[i + 1][j], long[i][j + 1])
	}
	const found = []
	for (let i = 0, j = 0; i < x.length || j < y.length;) {
		if (i < x.length && x[i] === y[j]) found.push(["", x[i++], j++])
		else if (j >= y.length || (i < x.length && long[i + 1][j] >= long[i][j + 1])) found.push(["del", x[i++]])
		else found.push(["add", y[j++]])
	}
	return found
}

export const diffView = (before, after) => h("div.code.diff.box", {...CODE, role: "group"}, diffLines(before, after).map(([kind, line]) => h("span", {class: kind}, `${SIGNS[kind]} ${line}`)))
