// Draws one frame of the flow explorer. Everything is in row k of `frames`; sources are changed in place and told so,
// which neither copies nor sends anything to the server.

const ACROSS = 12 // arrows along the shorter side
const TRAILS = 100 // particles that draw a trail, of all flows together
const RING = Array.from({length: 73}, (_, i) => i * Math.PI / 36)

const row = (column, k) => {
  const width = column.shape[1]
  return new Float32Array(column.buffer, column.byteOffset + 4 * k * width, width)
}

const put = (source, columns) => {
  Object.assign(source.data, columns)
  source.change.emit()
}

const ring = ([x, y, a, b, c, d]) => ({
  x: RING.map((s) => x + a * Math.cos(s) + b * Math.sin(s)),
  y: RING.map((s) => y + c * Math.cos(s) + d * Math.sin(s)),
})

// The trails of some of the particles from one frame to another.
const trails = (xs, ys, [first, last], count) => {
  const width = xs.shape[1]
  const path = (values, p) => Float32Array.from({length: last - first + 1}, (_, i) => values[(first + i) * width + p])
  const each = (values) => Array.from({length: Math.min(width, count)}, (_, p) => path(values, p))
  return first < last ? {xs: each(xs), ys: each(ys)} : {xs: [], ys: []}
}

// Move the camera: the box (centre, half widths) fits, and a unit is as long on both axes.
const aim = (plane, [x, y, w, h]) => {
  const scale = Math.max(2 * w / plane.inner_width, 2 * h / plane.inner_height)
  const [dx, dy] = [scale * plane.inner_width / 2, scale * plane.inner_height / 2]
  plane.x_range.setv({start: x - dx, end: x + dx})
  plane.y_range.setv({start: y - dy, end: y + dy})
  return {x: x - dx, y: y - dy, width: 2 * dx, height: 2 * dy}
}

const grid = ({x, y, width, height}) => {
  const gap = Math.min(width, height) / ACROSS
  const [nx, ny] = [Math.floor(width / gap), Math.floor(height / gap)]
  const [x0, y0] = [x + (width - (nx - 1) * gap) / 2, y + (height - (ny - 1) * gap) / 2]
  return {gap, points: Array.from({length: nx * ny}, (_, i) => [x0 + (i % nx) * gap, y0 + Math.floor(i / nx) * gap])}
}

const field = ([a, b, c, d, e, f], points) => points.map(([x, y]) => [a * x + b * y + e, c * x + d * y + f])
const longest = (vectors) => Math.max(...vectors.map(([u, v]) => Math.hypot(u, v)))

// Arrows as segments, the longest as long as a cell; `scale` is that of the exact field, so that fields can be compared.
const arrows = (points, vectors, scale, color) => points.map(([x, y], i) => {
  const [u, v] = vectors[i]
  return {x, y, x1: x + scale * u, y1: y + scale * v, angle: Math.atan2(v, u) - Math.PI / 2, color}
})
const columns_of = (rows) => {
  const names = ["x", "y", "x1", "y1", "angle", "color"]
  return Object.fromEntries(names.map((name) => [name, rows.map((one) => one[name])]))
}

const nice = (value) => { // the largest of 1, 2, 5, 10, 20, … that is not above value
  const power = 10 ** Math.floor(Math.log10(value))
  return power * [5, 2, 1].find((digit) => digit * power <= value)
}

// Draw the chosen arrows, of each flow in its colour, and say what they are.
const show_arrows = ({sources, colors}, mode, view, exact, flows) => {
  if (mode == 0) {
    put(sources.arrows, columns_of([]))
    return ""
  }
  const {gap, points} = grid(view)
  const truth = field(exact, points)
  const guesses = flows.map(({fitted}) => field(fitted, points))
  const gaps = guesses.map((guess) => guess.map(([u, v], i) => [u - truth[i][0], v - truth[i][1]]))
  const unit = 0.9 * gap / longest(truth)
  const times = mode == 3 ? nice(Math.min(1e4, 0.9 * gap / Math.max(...gaps.map(longest)) / unit)) : 1
  const tints = flows.map(({color}) => mode == 3 && flows.length == 1 ? colors.difference : color)
  const shown = mode == 1 ? [[truth, colors.exact]] : (mode == 2 ? guesses : gaps).map((one, i) => [one, tints[i]])
  put(sources.arrows, columns_of(shown.flatMap(([one, color]) => arrows(points, one, unit * times, color))))
  return ["", "arrows: v", "arrows: v̂", `arrows: v̂ − v${times == 1 ? "" : `, ${times} times as long`}`][mode]
}

// The particles, trails and marginal of one flow, or nothing where there is no such flow.
const show_flow = ({frames, look, sources, length, parts}, end, share) => {
  const [columns, k, there] = [frames.data, look.data.frame[0], frames.data[`particle_x${end}`] !== undefined]
  const [xs, ys] = [columns[`particle_x${end}`], columns[`particle_y${end}`]]
  put(sources[`flow${end}_dots`], there ? {x: row(xs, k), y: row(ys, k)} : {x: [], y: []})
  put(sources[`flow${end}_marginal`], there ? ring(row(columns[`flow_marginal${end}`], k)) : {x: [], y: []})
  for (let i = 0; i < parts; i++) {
    const at = (j) => Math.max(0, k - Math.round(length * (parts - j) / parts))
    put(sources[`flow${end}_trail${i}`], there ? trails(xs, ys, [at(i), at(i + 1)], share) : {xs: [], ys: []})
  }
}

export default (args) => {
  const {frames, look, plane, cursors, sources, dots, rings} = args
  const columns = frames.data
  const [k, mode, camera] = [look.data.frame[0], look.data.arrows[0], look.data.camera[0]]
  if (columns.t === undefined || !(plane.inner_width > 0)) return
  const view = aim(plane, row(camera == 0 ? columns.follow : columns.whole, k))
  const flows = [{fitted: row(columns.fitted, k), color: dots.fill_color.value}]
  if (columns.fitted_2 !== undefined) flows.push({fitted: row(columns.fitted_2, k), color: rings.line_color.value})
  const caption = show_arrows(args, mode, view, row(columns.exact, k), flows)
  put(sources.samples, {x: row(columns.sample_x, k), y: row(columns.sample_y, k)})
  put(sources.marginal, ring(row(columns.marginal, k)))
  for (const end of ["", "_2"]) show_flow(args, end, TRAILS / flows.length)
  plane.title.text = `t = ${columns.t[k].toFixed(2)}     ${caption}`
  for (const cursor of cursors) cursor.location = columns.t[k]
}
