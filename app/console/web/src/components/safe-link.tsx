import { safeLink } from "../lib/links";

/** Text that a tenant wrote: a link if it is an http or https address, else plain text. */
export function SafeLink({ text }: { text: string }) {
  const href = safeLink(text);
  if (href === null) return text;
  return (
    <a href={href} target="_blank" rel="noreferrer noopener">
      {text}
    </a>
  );
}
