// What scripts that show animations share.

// Sources are changed in place and told so, which neither copies nor sends anything to the server.
const put = (source, columns) => {
  Object.assign(source.data, columns)
  source.change.emit()
}

// Show the square [−2, 2]² whole, a unit as long on both axes.
const fit = ({inner_width, inner_height, x_range, y_range}) => {
  if (!(inner_width > 0)) return
  const unit = 2 / Math.min(inner_width, inner_height)
  x_range.setv({start: -unit * inner_width, end: unit * inner_width})
  y_range.setv({start: -unit * inner_height, end: unit * inner_height})
}
