// Draws one frame of the double well. Everything is in row k of `frames`; sources are changed in place and told so,
// which neither copies nor sends anything to the server.

const row = (column, k) => {
  const width = column.shape[1]
  return new Float32Array(column.buffer, column.byteOffset + 4 * k * width, width)
}

const put = (source, columns) => {
  Object.assign(source.data, columns)
  source.change.emit()
}

const even = (low, high, count) => Float32Array.from({length: count}, (_, i) => low + (high - low) * i / (count - 1))

// Particles in the strip number `place` below the axis, each always at the same height.
const strip = (x, place, depth) => ({
  x, y: Float32Array.from(x, (_, i) => -depth * (place + 0.25 + 0.7 * ((i * 0.618034) % 1))),
})

const nothing = {x: [], y: []}

export default ({frames, look, sources, cursors, title, height, low, high, depth}) => {
  const columns = frames.data
  if (columns.t === undefined) return
  const k = look.data.frame[0]
  const density = row(columns.density, k)
  const x = even(low, high, density.length)
  put(sources.density, {x, y: density})
  put(sources.exact, {x, y: row(columns.exact, k)})
  put(sources.samples_dots, strip(row(columns.sample, k), 0, depth))
  for (const [place, end] of ["", "_2"].entries()) {
    const there = columns[`particle${end}`] !== undefined
    const bars = there ? row(columns[`bars${end}`], k) : []
    const edges = even(low, high, bars.length + 1)
    put(sources[`flow${end}_dots`], there ? strip(row(columns[`particle${end}`], k), place + 1, depth) : nothing)
    put(sources[`flow${end}_bars`], there ? {x: edges, y: [...bars, bars[bars.length - 1]]} : nothing)
    put(sources[`flow${end}_field`], there ? {x, y: row(columns[`fitted${end}`], k)} : nothing)
  }
  height.setv({start: -columns.reach[k], end: columns.reach[k]})
  title.text = `t = ${columns.t[k].toFixed(2)}`
  for (const cursor of cursors) cursor.location = columns.t[k]
}
