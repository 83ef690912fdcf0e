// Before the first paint: the colours that the reader chose here earlier.
try {
  const chosen = localStorage.getItem("fedhp-theme");
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
} catch {
  // Storage is switched off: the system's colours.
}
