// Draws one frame of the spectrum explorer. Everything is in row k of `frames`; sources are changed in place and told so,
// which neither copies nor sends anything to the server.

const put = (source, columns) => {
  Object.assign(source.data, columns)
  source.change.emit()
}

const row = (column, k) => {
  const width = column.shape[1]
  return Array.from({length: width}, (_, i) => column[k * width + i])
}

// Root mean square over the chosen shells of log₁₀ of a spectrum over the mean one.
const distance = (spectrum, mean, [low, high]) => {
  let sum = 0
  for (let s = low - 1; s < high; s++) sum += (spectrum[s] - mean[s]) ** 2
  return Math.sqrt(sum / (high - low + 1))
}

const say = (value) => value < 1000 ? value.toFixed(value < 10 ? 2 : 0) : value.toExponential(1)

export default ({frames, look, pictures, lines, bands, band, cursors, shells, now, mean, step, shown}) => {
  const columns = frames.data
  if (!columns.t) return
  const t = Array.from(columns.t), lead = look.data.frame[0] * step
  const k = Math.max(0, t.findLastIndex((time) => time <= lead + 1e-6))
  const chosen = [look.data.low[0], look.data.high[0]]
  for (const name of ["truth", "guess", "difference"]) put(pictures[name], {image: [columns[name][k]]})

  const errors = {}
  for (const name of ["truth", "guess"]) {
    const spectra = columns[`${name}_spectrum`], present = row(spectra, k)
    put(lines[name], {k: present.map((_, s) => s + 1), power: present.map((value) => 10 ** value)})
    errors[name] = t.map((_, i) => distance(row(spectra, i), mean, chosen))
  }
  put(bands, {t, ...errors})
  band.setv({left: chosen[0] - 0.5, right: chosen[1] + 0.5})
  shells.y_range.end = 1.1 * Math.min(shown, Math.max(0.1, ...errors.guess, ...errors.truth))
  shells.title.text = `log₁₀-spectral error, shells ${chosen[0]}–${chosen[1]}`
  for (const cursor of cursors) cursor.location = t[k]

  const [error, still, size] = ["error", "still", "size"].map((name) => say(columns[name][k]))
  now.text = `<p>At lead ${t[k].toFixed(1)} the relative mean square error is ${error} (persistence: ${still}), the
    RMS amplitude is ${size} of a true field's, and its log₁₀-spectral error over the shells ${chosen[0]} to
    ${chosen[1]} is ${say(errors.guess[k])} (this true field: ${say(errors.truth[k])}).</p>`
}
