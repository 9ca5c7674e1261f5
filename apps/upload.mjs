// A file that the reader chooses, sent as bytes if it is not too large; else only its size is.

export function render({model}) {
  const label = document.createElement("label")
  const input = document.createElement("input")
  label.textContent = model.label
  input.type = "file"
  input.accept = model.accept
  input.addEventListener("change", async () => {
    const [file] = input.files
    if (!file) return
    input.value = "" // at once: the same file can be chosen again, and no later choice is lost
    const {name, size} = file
    const content = size <= model.most ? await file.arrayBuffer() : null
    model.send_msg({name, size, content})
  })
  label.append(input)
  return label
}
