import { defineConfig } from "vite";

export default defineConfig({
  base: "/console/",
  build: {
    target: ["chrome123", "firefox128", "safari17.5"],
    // The policy allows no inline script, and an inline asset would need one more source.
    assetsInlineLimit: 0,
    modulePreload: false,
    reportCompressedSize: false,
    // The packages in the script ask for their notices.
    license: { fileName: "licenses.md" },
  },
});
