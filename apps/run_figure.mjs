// Draws one frame of a run. A source called `name` takes its column `x` from row k of the column `name_x` of `frames`;
// one of pictures takes the k-th of its list. Sources are changed in place and told so: nothing goes to the server.

const row = (column, k) => {
  if (!column.shape) return [column[k]]
  const width = column.shape[1]
  return new Float32Array(column.buffer, column.byteOffset + 4 * k * width, width)
}

export default ({frames, look, sources, cursor, clock, screens, time}) => {
  const columns = frames.data
  if (columns.t === undefined) return
  for (const {inner_width, inner_height, x_range, y_range} of screens) {
    if (!(inner_width > 0)) continue
    const unit = 1 / Math.min(inner_width, inner_height)
    x_range.setv({start: -unit * inner_width, end: unit * inner_width})
    y_range.setv({start: -unit * inner_height, end: unit * inner_height})
  }
  const k = Math.min(look.data.frame[0], columns.t.length - 1)
  for (const [name, source] of Object.entries(sources)) {
    for (const part of Object.keys(source.data)) {
      const column = columns[part == "image" ? name : `${name}_${part}`]
      if (column !== undefined) source.data[part] = row(column, k)
    }
    source.change.emit()
  }
  cursor.location = columns.t[k]
  clock.text = `${time.text} = ${columns.t[k].toPrecision(4)}`
}
