// Draws one frame of the rollout explorer. Everything is in row k of `frames`; sources are changed in place and told so,
// which neither copies nor sends anything to the server.

const put = (source, columns) => {
  Object.assign(source.data, columns)
  source.change.emit()
}

// Show the square [−2, 2]² whole, a unit as long on both axes.
const fit = ({inner_width, inner_height, x_range, y_range}) => {
  const unit = 2 / Math.min(inner_width, inner_height)
  x_range.setv({start: -unit * inner_width, end: unit * inner_width})
  y_range.setv({start: -unit * inner_height, end: unit * inner_height})
}

export default ({frames, look, screens, pictures, dots, trails, cursor, clock, length}) => {
  const columns = frames.data
  if (!columns.t) return
  screens.filter((one) => one.inner_width > 0).forEach(fit)
  const k = Math.min(look.data.frame[0], columns.t.length - 1)
  for (const name of ["truth", "guess"]) {
    const [x, y] = [columns[`${name}_x`], columns[`${name}_y`]]
    put(pictures[name], {image: [columns[name][k]]})
    put(dots[name], {x: [x[k]], y: [y[k]]})
    put(trails[name], {x: x.slice(Math.max(0, k - length), k + 1), y: y.slice(Math.max(0, k - length), k + 1)})
  }
  cursor.location = columns.t[k]
  clock.text = `pose error in degrees, ${columns.t[k].toFixed(2)} s after the start`
}
