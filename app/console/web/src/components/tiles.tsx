import type { ReactNode } from "react";

/** Row of figures. */
export function Tiles({ tiles }: { tiles: readonly (readonly [name: string, value: ReactNode])[] }) {
  return (
    <dl className="tiles">
      {tiles.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}
