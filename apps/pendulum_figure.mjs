// Draws one frame of the double pendulum. Everything is in row k of `frames`, the one path first in each row; sources
// are changed in place and told so, which neither copies nor sends anything to the server.

const row = (column, k) => {
  const width = column.shape[1]
  return new Float32Array(column.buffer, column.byteOffset + 4 * k * width, width)
}

const put = (source, columns) => {
  Object.assign(source.data, columns)
  source.change.emit()
}

// The first of each row, from row `from` to row k.
const trail = (column, from, k) => Array.from({length: k + 1 - from}, (_, i) => column[(from + i) * column.shape[1]])

// A gap where an angle goes once around, so that no line crosses the picture.
const torn = (x, y) => {
  const [tx, ty] = [[], []]
  x.forEach((value, i) => {
    if (i > 0 && Math.abs(value - x[i - 1]) > Math.PI) { tx.push(NaN); ty.push(NaN) }
    tx.push(value); ty.push(y[i])
  })
  return {x: tx, y: ty}
}

const joints = (a, b) => ({
  x: [0, Math.sin(a), Math.sin(a) + Math.sin(a + b)],
  y: [0, -Math.cos(a), -Math.cos(a) - Math.cos(a + b)],
})

// Show the square around both links whole, a unit as long on both axes.
const fit = ({inner_width, inner_height, x_range, y_range}, reach) => {
  const unit = reach / Math.min(inner_width, inner_height)
  x_range.setv({start: -unit * inner_width, end: unit * inner_width})
  y_range.setv({start: -unit * inner_height, end: unit * inner_height})
}

const nothing = {x: [], y: []}

export default ({frames, look, sources, cursors, drawn, title, ensembles, length}) => {
  const columns = frames.data
  if (columns.t === undefined) return
  if (drawn.inner_width > 0) fit(drawn, 2.15)
  const k = look.data.frame[0]
  const from = Math.max(0, k - length)
  for (const [name, [start, end]] of Object.entries(ensembles)) {
    const column = (quantity) => columns[`${start}_${quantity}${end}`]
    const there = column("angle1") !== undefined
    const [a, b] = there ? [1, 2].map((i) => trail(column(`angle${i}`), from, k)) : [[], []]
    const tips = a.map((angle, i) => joints(angle, b[i]))
    put(sources[`${name}_rods`], there ? joints(a[a.length - 1], b[b.length - 1]) : nothing)
    put(sources[`${name}_tip`], {x: tips.map(({x}) => x[2]), y: tips.map(({y}) => y[2])})
    for (const i of [1, 2]) {
      const [angle, velocity] = [column(`angle${i}`), column(`velocity${i}`)]
      put(sources[`${name}_dots${i}`], there ? {x: row(angle, k), y: row(velocity, k)} : nothing)
      put(sources[`${name}_way${i}`], there ? torn(i === 1 ? a : b, trail(velocity, from, k)) : nothing)
      put(sources[`${name}_here${i}`], there ? {x: [row(angle, k)[0]], y: [row(velocity, k)[0]]} : nothing)
    }
  }
  title.text = `t = ${columns.t[k].toFixed(2)} s`
  for (const cursor of cursors) cursor.location = columns.t[k]
}
