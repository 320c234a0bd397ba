// Builds the page from nodes and text: no HTML strings, no style attributes.

const given = kids => kids.flat(4).filter(kid => kid != null && kid !== false)

// `on…` listens, `label` is the accessible name, `style` an object; null and false are left out.
function build(make, selector, kids) {
	const [path, test] = selector.split("@")
	const [tag, ...classes] = path.split(".")
	const {class: more, style, ...props} = kids[0]?.constructor === Object ? kids.shift() : {}
	const el = make(tag)
	if (more) classes.push(more)
	if (classes.length) el.setAttribute("class", classes.join(" "))
	for (const name in style) el.style.setProperty(name, style[name])
	for (const [name, value] of Object.entries({"data-testid": test || null, ...props})) {
		if (value == null || value === false) continue
		if (name.startsWith("on")) el.addEventListener(name.slice(2), value)
		else el.setAttribute(name === "label" ? "aria-label" : name, value === true ? "" : value)
	}
	el.append(...given(kids))
	return el
}

/** Makes an HTML element: `h("td.num@test-id", {title: "x"}, …)`; properties may be left out. @param {...any} kids @returns {any} */
export const h = (selector, ...kids) => build(tag => document.createElement(tag), selector, kids)

/** Makes an SVG element in the same way. @param {...any} kids @returns {any} */
export const s = (selector, ...kids) => build(tag => document.createElementNS("http://www.w3.org/2000/svg", tag), selector, kids)

/** Replaces the content of an element. @param {any} el @param {...any} kids */
export const fill = (el, ...kids) => el.replaceChildren(...given(kids))

// Text that the gateway or a client wrote, shown as it is.
export const raw = (text, cls) => h("span", {class: cls, lang: "en", dir: "auto", translate: "no"}, text)

export const phone = matchMedia("(max-width: 720px)")

// The attributes of code, which can be scrolled by keyboard.
export const CODE = {lang: "en", translate: "no", tabindex: 0}

export const dim = (...kids) => h("span.dim", kids)

const PATHS = {
	overview: "M2.5 13.5h11M4 11V7.5M7 11V3.5M10 11V6M13 11V8.5",
	requests: "M2.5 4h11M2.5 8h11M2.5 12h7",
	sessions: "M2.5 3.5h8v6h-4L4 12V9.5H2.5ZM12.5 6.5h1v5.5h-1v2l-2.5-2H8",
	inspector: "M7 11.5A4.5 4.5 0 1 0 7 2.5a4.5 4.5 0 0 0 0 9ZM10.3 10.3 13.5 13.5",
	providers: "M4.5 12.5a3 3 0 0 1-.3-6 4 4 0 0 1 7.7 1A2.6 2.6 0 0 1 11.5 12.5Z",
	routing: "M2.5 8h3c3 0 2-4.5 5-4.5h3M5.5 8c3 0 2 4.5 5 4.5h3M5.5 8h8",
	playground: "M5 3.5v9l7.5-4.5Z",
	keys: "M5.5 10.5a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5ZM8 8h5.5M11 8v2M13.5 8v2",
	config: "M2.5 5h6M11.5 5h2M2.5 11h2M7.5 11h6M10 3.2v3.6M6 9.2v3.6",
	more: "M3.5 8h.1M8 8h.1M12.5 8h.1",
	arrow: "M2.5 8h10M9 4.5 12.5 8 9 11.5",
	pause: "M5.5 3.5v9M10.5 3.5v9",
	close: "M4 4l8 8M12 4l-8 8",
	up: "M4 10l4-4 4 4",
	down: "M4 6l4 4 4-4",
	plus: "M8 3.5v9M3.5 8h9",
	check: "M5 8.3l2 2 4-4.4",
	skip: "M5.2 8h5.6",
	cross: "M5.8 5.8l4.4 4.4M10.2 5.8 5.8 10.2",
	logo: "M1.5 4h3c4 0 3 8 7 8h3M1.5 12h3c1.2 0 2-.9 2.5-2M9 6c.5-1.1 1.3-2 2.5-2h3",
}

// A line icon of 16 px, for `mark` in a circle.
export const icon = (name, ...around) => s("svg.icon", {viewBox: "0 0 16 16", "aria-hidden": "true"}, around, s("path", {d: PATHS[name]}))
export const mark = name => icon(name, s("circle", {cx: 8, cy: 8, r: 6.6}))
