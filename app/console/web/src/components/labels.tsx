import { SafeLink } from "./safe-link";

/** Labels of a version. */
export function Labels({ labels }: { labels: Readonly<Record<string, string>> }) {
  const entries = Object.entries(labels);
  if (entries.length === 0) return <p className="quiet">No labels.</p>;
  return (
    <ul className="row plain">
      {entries.map(([name, value]) => (
        <li key={name} className="badge label">
          {name}=<SafeLink text={value} />
        </li>
      ))}
    </ul>
  );
}
