// Draws one frame of the flow explorer. Everything is in row k of `frames`; sources are changed in place and told so,
// which neither copies nor sends anything to the server.

const ACROSS = 12 // arrows along the shorter side
const TRAILS = 100 // particles that draw a trail
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

// The trails of the particles from frame `first` to `last`.
const trails = (xs, ys, first, last) => {
  const width = xs.shape[1]
  const path = (values, p) => Float32Array.from({length: last - first + 1}, (_, i) => values[(first + i) * width + p])
  const each = (values) => Array.from({length: Math.min(width, TRAILS)}, (_, p) => path(values, p))
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
const arrows = (points, vectors, scale) => {
  const [x, y] = [points.map((p) => p[0]), points.map((p) => p[1])]
  return {
    x, y,
    x1: x.map((value, i) => value + scale * vectors[i][0]),
    y1: y.map((value, i) => value + scale * vectors[i][1]),
    angle: vectors.map(([u, v]) => Math.atan2(v, u) - Math.PI / 2),
  }
}

const nice = (value) => { // the largest of 1, 2, 5, 10, 20, … that is not above value
  const power = 10 ** Math.floor(Math.log10(value))
  return power * [5, 2, 1].find((digit) => digit * power <= value)
}

// Draw the chosen arrows and say what they are.
const show_arrows = ({sources, shafts, heads, colors, tint}, mode, view, exact, fitted) => {
  if (mode == 0) {
    put(sources.arrows, arrows([], [], 0))
    return ""
  }
  const {gap, points} = grid(view)
  const [truth, guess] = [field(exact, points), field(fitted, points)]
  const gaps = guess.map(([u, v], i) => [u - truth[i][0], v - truth[i][1]])
  const unit = 0.9 * gap / longest(truth)
  const times = mode == 3 ? nice(Math.min(1e4, 0.9 * gap / longest(gaps) / unit)) : 1
  const color = colors[mode] ?? tint.fill_color
  shafts.line_color = color
  heads.fill_color = color
  put(sources.arrows, arrows(points, [null, truth, guess, gaps][mode], unit * times))
  return ["", "arrows: v", "arrows: v̂", `arrows: v̂ − v, ${times} times as long`][mode]
}

export default (args) => {
  const {frames, look, plane, cursors, sources, length, parts} = args
  const columns = frames.data
  const [k, mode, camera] = [look.data.frame[0], look.data.arrows[0], look.data.camera[0]]
  if (!(plane.inner_width > 0)) return
  const view = aim(plane, row(camera == 0 ? columns.follow : columns.whole, k))
  const caption = show_arrows(args, mode, view, row(columns.exact, k), row(columns.fitted, k))
  put(sources.samples, {x: row(columns.sample_x, k), y: row(columns.sample_y, k)})
  put(sources.particles, {x: row(columns.particle_x, k), y: row(columns.particle_y, k)})
  put(sources.law, ring(row(columns.law, k)))
  put(sources.flow_law, ring(row(columns.flow_law, k)))
  for (let i = 0; i < parts; i++) {
    const at = (j) => Math.max(0, k - Math.round(length * (parts - j) / parts))
    put(sources[`trail${i}`], trails(columns.particle_x, columns.particle_y, at(i), at(i + 1)))
  }
  plane.title.text = `t = ${columns.t[k].toFixed(2)}     ${caption}`
  for (const cursor of cursors) cursor.location = columns.t[k]
}
