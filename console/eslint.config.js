// The console's JavaScript: what a browser runs as it is, with nothing that could parse markup.

import js from "@eslint/js";

const BROWSER = [
  "AbortController", "CustomEvent", "EventSource", "HashChangeEvent", "Intl", "Node", "ResizeObserver", "TextDecoder", "URL",
  "URLSearchParams", "addEventListener", "atob", "clearTimeout", "dispatchEvent", "document", "fetch", "getComputedStyle",
  "localStorage", "location", "matchMedia", "sessionStorage", "setInterval", "setTimeout",
];
const MARKUP = ["innerHTML", "outerHTML", "insertAdjacentHTML", "setHTMLUnsafe", "write", "createContextualFragment"];

export default [
  { ignores: ["**/vendor/**"] },
  js.configs.recommended,
  {
    languageOptions: { ecmaVersion: 2023, sourceType: "module", globals: Object.fromEntries(BROWSER.map((name) => [name, "readonly"])) },
    rules: {
      eqeqeq: ["error", "always", { null: "ignore" }],
      "no-eval": "error",
      "no-implied-eval": "error",
      "no-new-func": "error",
      "no-restricted-properties": ["error", ...MARKUP.map((property) => ({ property, message: "Text is text: see dom.js." }))],
      "no-unused-vars": ["error", { argsIgnorePattern: "^_" }],
      "no-var": "error",
      "prefer-const": "error",
    },
  },
];
