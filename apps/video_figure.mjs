// Draws one frame of a clip. Row k of `rows` is the prediction; `slow` rows make a frame of `whole`, which has the truth
// and all measures. `put` and `fit` are those of images.mjs.

const NAMES = {guess: "prediction", still: "persistence", codec: "codec alone"}
const MEASURES = {mse: ["MSE", 5], psnr: ["PSNR, dB", 1], ssim: ["SSIM", 3]}

const STYLE = `<style>
table { border-collapse: collapse; font: .92rem/1.5 var(--bs-font-sans-serif); font-variant-numeric: tabular-nums }
caption { caption-side: top; text-align: left; padding: .2rem 0 .4rem }
th { font-weight: normal; text-align: left } td, thead th { text-align: right }
th, td { padding: .15rem 0 .15rem 1.1rem; border-bottom: 1px solid #8884; white-space: nowrap } tr > :first-child { padding-left: 0 }
</style>`

const table = (columns, j, seen) => {
  const value = (name, measure, digits) => {
    const x = columns[`${name}_${measure}`][j]
    return Number.isNaN(x) ? "–" : x == Infinity ? "∞" : x.toFixed(digits)
  }
  const head = Object.values(MEASURES).map(([text]) => `<th scope="col">${text}</th>`).join("")
  const row = (name) => Object.entries(MEASURES).map(([m, [, digits]]) => `<td>${value(name, m, digits)}</td>`).join("")
  const body = Object.entries(NAMES).map(([name, text]) => `<tr><th scope="row">${text}</th>${row(name)}</tr>`).join("")
  const last = j - seen + 1
  const about = last > 0 ? `Mean of ${last == 1 ? "the first frame" : `the first ${last} frames`}` : "Nothing is predicted yet"
  return `${STYLE}<table><caption>${about}</caption><thead><tr><th></th>${head}</tr></thead><tbody>${body}</tbody></table>`
}

export default ({whole, rows, look, screens, pictures, cursor, clock, scores}) => {
  const [columns, guess] = [whole.data, rows.data.guess]
  if (!columns.t || !guess) return
  const slow = (guess.length - 1) / (columns.t.length - 1)
  if (!Number.isInteger(slow)) return // one of the two is still on its way
  screens.forEach(fit)
  const k = Math.min(look.data.frame[0], guess.length - 1)
  const j = Math.floor(k / slow)
  const t = columns.t[0] + (columns.t[1] - columns.t[0]) * k / slow
  const seen = columns.t.filter((time) => time < 1e-6).length
  put(pictures.truth, {image: [columns.truth[j]]})
  put(pictures.guess, {image: [guess[k]]})
  put(pictures.difference, {image: [columns.difference[j]]})
  screens[1].title.text = k <= (seen - 1) * slow ? "what it sees" : "prediction"
  cursor.location = t
  clock.text = `MSE of each frame; here frame ${k / slow + 1} of ${columns.t.length}`
  scores.text = table(columns, j, seen)
}
