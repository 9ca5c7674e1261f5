// Draws one frame of the rollout explorer. Everything is in row k of `frames`; `put` and `fit` are those of images.mjs.

export default ({frames, look, screens, pictures, dots, trails, cursor, clock, length}) => {
  const columns = frames.data
  if (!columns.t) return
  screens.forEach(fit)
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
