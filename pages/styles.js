// xterm.js writes its colours and sizes into <style> elements and style attributes, which the policy of the page
// forbids: it would have to allow every injected style. The same rules as objects of the page's own script are
// allowed, so both ways are led there.

/** Call it before a terminal is made. */
export function styleWithoutInline() {
  const create = document.createElement.bind(document)
  document.createElement = (name, options) =>
    name === 'style' ? styleElement(create) : create(name, options)

  const { setAttribute } = Element.prototype
  Element.prototype.setAttribute = function (name, value) {
    if (name === 'style') this.style.cssText = value
    else setAttribute.call(this, name, value)
  }
}

/** An element that looks like a <style> to who fills it. */
function styleElement(create) {
  const sheet = new CSSStyleSheet()
  document.adoptedStyleSheets.push(sheet)
  const element = create('span')
  element.hidden = true
  let text = ''
  Object.defineProperties(element, {
    sheet: { value: sheet },
    textContent: {
      get: () => text,
      set(value) {
        text = value
        sheet.replaceSync(value)
      },
    },
    remove: {
      value() {
        Element.prototype.remove.call(element)
        document.adoptedStyleSheets = document.adoptedStyleSheets.filter((one) => one !== sheet)
      },
    },
  })
  return element
}
