// Formulas, which arithmatex leaves as \( \) and \[ \]; without KaTeX (no network) they stay readable TeX.
document$.subscribe(({ body }) => {
  if (typeof renderMathInElement === "function") {
    renderMathInElement(body, {
      delimiters: [
        { left: "\\[", right: "\\]", display: true },
        { left: "\\(", right: "\\)", display: false },
      ],
    });
  }
});
