import { useEffect, useState } from "react";

const THEMES = ["system", "light", "dark"] as const;
type Theme = (typeof THEMES)[number];
const STORED = "tenora-theme";

/** Switch between the system's theme, light and dark. The choice stays in this browser. */
export function ThemeButton() {
  const [theme, setTheme] = useState<Theme>(
    () => THEMES.find((name) => name === localStorage.getItem(STORED)) ?? "system",
  );

  useEffect(() => {
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    localStorage.setItem(STORED, theme);
  }, [theme]);

  return (
    <button
      type="button"
      className="small"
      onClick={() => setTheme(THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length] ?? "system")}
    >
      Theme: {theme}
    </button>
  );
}
